"""Credentials of container registries: from Docker's form into the one that enroot reads.

enroot (src/docker.sh) takes credentials from `$ENROOT_CONFIG_PATH/.credentials`, a netrc file, only where the image's
reference names the user or the registry. It looks for `machine REGISTRY login USER`; curl then looks for the host
that gives the token, which for Docker Hub is another.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from typing import Any

from speedrun_operator.sealed.sealed import Unusable, text_of

DOCKER_HUB = "registry-1.docker.io"
_HUB_NAMES = frozenset({"docker.io", "index.docker.io", DOCKER_HUB})
_TOKEN_HOSTS = {DOCKER_HUB: ("auth.docker.io",), "nvcr.io": ("authn.nvidia.com",)}
_IMAGE = re.compile(r"docker://(?:[^@/]+@)?(?:(?P<registry>[^#/]+)#)?")
_USER = re.compile(r"[A-Za-z0-9_.!~*'()%;:&=+$,-]+")


def registry_of(image: str) -> str:
    """The host of the registry that an image such as `docker://[registry#]name:tag` comes from."""
    found = _IMAGE.match(image)
    registry = (found["registry"] if found else None) or DOCKER_HUB
    return DOCKER_HUB if registry in _HUB_NAMES else registry


def credentials(value: bytes, image: str) -> tuple[str, str]:
    """The user's name and the netrc lines for the registry of `image`, from a .dockerconfigjson. Raises Unusable."""
    registry = registry_of(image)
    user, password = _login(_auths(value), registry)
    if not _USER.fullmatch(user):
        raise Unusable(f"has a user name for {registry} that enroot does not take")
    if not password or any(character.isspace() for character in password) or password.startswith("$"):
        # enroot's own rule: a password that begins with $ is run by a shell.
        raise Unusable(f"has a password for {registry} that is empty, has white space, or begins with $")
    machines = (registry.partition(":")[0], *_TOKEN_HOSTS.get(registry, ()))
    return user, "".join(f"machine {machine} login {user} password {password}\n" for machine in machines)


def _auths(value: bytes) -> dict[str, Any]:
    try:
        auths = json.loads(text_of(value))["auths"]
    except (ValueError, KeyError, TypeError):
        auths = None
    if not isinstance(auths, dict):
        raise Unusable("is no Docker configuration; `kubectl create secret docker-registry` makes one")
    return auths


def _login(auths: dict[str, Any], registry: str) -> tuple[str, str]:
    for name, each in auths.items():
        host = re.sub(r"^https?://", "", name).partition("/")[0]
        if (DOCKER_HUB if host in _HUB_NAMES else host) != registry or not isinstance(each, dict):
            continue
        if each.get("username"):
            return str(each["username"]), str(each.get("password", ""))
        try:
            user, _, password = base64.b64decode(each.get("auth", ""), validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError, TypeError):
            raise Unusable(f"has credentials for {registry} that cannot be read") from None
        return user, password
    raise Unusable(f"has no credentials for {registry}, where the base image is; it has: {', '.join(sorted(auths))}")
