"""The shared file system as far as ledgers go: what the remote commands and the jobs' scripts read and write there."""

from __future__ import annotations

from dataclasses import dataclass, field

CANCELLED = "cancelled"


@dataclass
class Ledger:
    """One allocation's directory. `claims`: number → the second in which it was made."""

    exists: bool = False
    claims: dict[int, float] = field(default_factory=dict)
    script: bytes | None = None
    jobid: str = ""
    owner: str = ""
    exit: str = ""
    log: bytes | None = None

    def own(self, who: str) -> str:
        """`ln` of one's own word to `owner`; whose it is then."""
        self.owner = self.owner or who
        return self.owner

    def write(self, text: str) -> None:
        self.log = (self.log or b"") + text.encode()


@dataclass
class Disk:
    """Ledgers by their path under the root, such as `lab/mine-0f0e0d0c/alloc-0`. `full`: nothing can be written."""

    ledgers: dict[str, Ledger] = field(default_factory=dict)
    full: bool = False

    def __getitem__(self, path: str) -> Ledger:
        return self.ledgers.setdefault(path, Ledger())
