"""Whether the login's key is registered with this account and known to the cluster. Looked at, never changed."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from speedrun_operator.platform.client import PlatformApi
from speedrun_operator.platform.errors import PlatformError

RESTARTS = (
    "the first key of a person with SSH access (yours, or a teammate's) adds a login account, which restarts the "
    "cluster's login, controller and compute nodes: jobs there end"
)


def fingerprint(path: Path) -> str:
    """SHA256:… of the public half of a private key, as `ssh-keygen -l` shows it. Raises OSError, ValueError."""
    data = path.read_bytes()
    try:
        load = (
            serialization.load_ssh_private_key if b"OPENSSH PRIVATE KEY" in data else serialization.load_pem_private_key
        )
        public = load(data, None).public_key()
        line = public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    except (TypeError, UnsupportedAlgorithm, AttributeError) as error:
        raise ValueError(f"{path}: no private key without a passphrase") from error
    digest = hashlib.sha256(base64.b64decode(line.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


async def key_report(api: PlatformApi, cluster: str, key_file: Path) -> tuple[bool | None, str]:
    """(good, what to say); good is None where it cannot be told."""
    try:
        ours = fingerprint(key_file)
    except (OSError, ValueError) as error:
        return None, f"the login's key cannot be compared: {error}"
    if not api.where.business_url:
        return None, f"whether {ours} is registered is not known: set platform.business_url; {RESTARTS}"
    try:
        keys, access, me = await api.ssh_keys(), await api.ssh_access(cluster), await api.me()
    except PlatformError as error:
        return None, f"whether {ours} is registered is not known: {error}"
    if all(ours not in each.fingerprints() for each in keys.keys):
        if not keys.keys:
            return False, f"this account has no key: register {ours} while nothing runs, for {RESTARTS}"
        return False, f"{ours} is not among this account's {len(keys.keys)} keys: register it (that restarts nothing)"
    if access.observation_current is not True:
        return None, f"{ours} is registered; the cluster has not been observed lately, so it may not know it yet"
    if keys.generation is not None and str(access.ssh_key_set_generation) != str(keys.generation):
        return False, (
            f"{ours} is registered, but the cluster knows generation {access.ssh_key_set_generation} of the keys and "
            f"not {keys.generation} yet: wait"
        )
    shell = ""
    if me.user.login_shell and access.shell and me.user.login_shell != access.shell:
        shell = f"; the shell is {access.shell} there and not {me.user.login_shell} yet"
    return True, f"{ours} is registered and known to the cluster{shell}; {RESTARTS}"
