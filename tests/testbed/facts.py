"""What a bed that is up tells about itself: flat strings in its state, properties in Python, exports in a shell."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# Facts that have a name that other programs know; the rest is exported as TESTBED_<KEY>.
WELL_KNOWN = {"kubeconfig": "KUBECONFIG", "slurm_conf": "SLURM_CONF"}


@dataclass(frozen=True)
class Facts:
    """Facts of a running bed. A property of a half that is not up raises LookupError."""

    flat: Mapping[str, str]

    def __getitem__(self, key: str) -> str:
        try:
            return self.flat[key]
        except KeyError:
            known = ", ".join(sorted(self.flat))
            raise LookupError(f"this bed has no {key!r} (was it started with --only?); it has: {known}") from None

    @property
    def kubeconfig(self) -> Path:
        """Kubeconfig of an administrator (0600)."""
        return Path(self["kubeconfig"])

    @property
    def api_url(self) -> str:
        return self["api_url"]

    @property
    def kubectl(self) -> Path:
        return Path(self["kubectl"])

    @property
    def ssh_host(self) -> str:
        return self["ssh_host"]

    @property
    def ssh_port(self) -> int:
        return int(self["ssh_port"])

    @property
    def ssh_user(self) -> str:
        return self["ssh_user"]

    @property
    def ssh_key(self) -> Path:
        """Private key of the login."""
        return Path(self["ssh_key"])

    @property
    def ssh_known_hosts(self) -> Path:
        """known_hosts file with the login's pinned host key."""
        return Path(self["ssh_known_hosts"])

    @property
    def slurm_conf(self) -> Path:
        return Path(self["slurm_conf"])

    @property
    def job_python(self) -> Path:
        """A Python interpreter that the job user can run."""
        return Path(self["job_python"])

    def exports(self) -> str:
        """Lines for a POSIX shell's `eval`, kubectl's directory put first on PATH."""
        lines = [
            f"export {WELL_KNOWN.get(key, f'TESTBED_{key.upper()}')}={shlex.quote(value)}"
            for key, value in sorted(self.flat.items())
        ]
        if "kubectl" in self.flat:
            lines.append(f"export PATH={shlex.quote(str(self.kubectl.parent))}:$PATH")
        return "\n".join(lines)
