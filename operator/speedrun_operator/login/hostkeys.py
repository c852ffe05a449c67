"""Which host keys known_hosts accepts for one login service, and what to say when another is presented.

Verification itself is asyncssh's, done in key exchange: before any user name or key of ours is sent. This module
gives it the pins and words the refusal. It never writes.
"""

from __future__ import annotations

from dataclasses import dataclass

import asyncssh
from asyncssh.public_key import get_default_certificate_algs, get_default_public_key_algs

from .errors import NotRun, Reason
from .target import LoginTarget, keyscan_hint


@dataclass(frozen=True)
class Pins:
    """The keys of one host: accepted, accepted as signers of host certificates, and revoked."""

    keys: tuple[asyncssh.SSHKey, ...]
    authorities: tuple[asyncssh.SSHKey, ...]
    revoked: tuple[asyncssh.SSHKey, ...]

    def algorithms(self) -> list[str]:
        """Host key algorithms to offer, pinned kinds first.

        A server that has a key of a pinned kind then shows that one. The other kinds follow so that a server without
        any shows what it has: a mismatch with a fingerprint, not a failed negotiation.
        """
        wanted = list(get_default_certificate_algs()) if self.authorities else []
        for key in self.keys:
            wanted += key.sig_algorithms
        wanted += get_default_public_key_algs()
        return [name.decode() for name in dict.fromkeys(wanted)]


def find_pins(text: str, target: LoginTarget) -> Pins:
    """The pins for the target's host and port, in the text of a known_hosts file.

    Raises NotRun (KnownHostsUnusable) for a malformed line, naming its number only: who pastes a private key into
    the wrong field must not find it in a log.
    """
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            asyncssh.import_known_hosts(line)
        except ValueError as error:
            raise NotRun(
                Reason.KNOWN_HOSTS_UNUSABLE,
                f"Line {number} of known_hosts is not `HOST KEYTYPE BASE64`. {keyscan_hint(target)}",
            ) from error
    known = asyncssh.import_known_hosts(text)
    # With a port asyncssh looks for [host]:port and, if there is none, for host: what OpenSSH does for other ports.
    found = [known.match(target.host, "", target.port)]
    if target.port == 22:
        found.append(known.match(target.host, "", None))
    return Pins(
        keys=tuple(dict.fromkeys(key for keys, *_ in found for key in keys)),
        authorities=tuple(dict.fromkeys(key for _, keys, *_ in found for key in keys)),
        revoked=tuple(dict.fromkeys(key for _, _, keys, *_ in found for key in keys)),
    )


def refusal(target: LoginTarget, pins: Pins, presented: asyncssh.SSHKey | None, cause: str) -> NotRun:
    """The failure for a host key that is not accepted; `presented` is None where asyncssh refused it by itself."""
    name = target.host if target.port == 22 else f"[{target.host}]:{target.port}"
    shown = "unknown" if presented is None else _fingerprint(presented)
    if not pins.keys and not pins.authorities:
        line = "" if presented is None else f" or add this line: {name} {_public_line(presented)}"
        return NotRun(
            Reason.HOST_KEY_UNKNOWN,
            f"known_hosts has no key for {name}, so it is not trusted. It presents {shown}: if the cluster's "
            f"administrator confirms that fingerprint, add its line to known_hosts{line}",
        )
    pinned = ", ".join(_fingerprint(key) for key in pins.keys)
    if pins.authorities:
        signers = ", ".join(_fingerprint(key) for key in pins.authorities)
        pinned += f"{'; ' if pinned else ''}certificates signed by {signers}"
    return NotRun(
        Reason.HOST_KEY_MISMATCH,
        f"Host key mismatch for {target.host} (port {target.port}): known_hosts pins {pinned}; the server presents "
        f"{shown} ({cause}). Nothing was sent to it. If the administrator confirms the new fingerprint, replace the "
        f"line in known_hosts; otherwise another machine answers in its place.",
    )


def _fingerprint(key: asyncssh.SSHKey) -> str:
    return f"{key.get_fingerprint()} ({key.get_algorithm()})"


def _public_line(key: asyncssh.SSHKey) -> str:
    return key.export_public_key("openssh").decode().strip()
