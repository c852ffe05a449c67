"""The manifest of a cache entry: lines of `name=value` that the job writes last, before the entry is moved in. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

MOST_LINES = 64
MANIFEST = "manifest"
_LINE = re.compile(r"([a-z][a-z0-9_.-]{0,62})=([ -~]{0,1024})")


@dataclass(frozen=True, slots=True)
class Manifest:
    """`facts` are the entry's own: sizes and hashes of what it holds, versions, and `input.*` of the code."""

    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def bytes(self) -> int | None:
        text = self.facts.get("bytes", "")
        return int(text) if re.fullmatch("[0-9]{1,18}", text) else None

    @property
    def inputs(self) -> dict[str, str]:
        """What the code tells others of itself (`needs`)."""
        return {name.removeprefix("input."): value for name, value in self.facts.items() if name.startswith("input.")}


def read_manifest(text: str) -> Manifest:
    """The manifest in `text`; lines of another form say nothing."""
    found = [match for line in text.splitlines()[:MOST_LINES] if (match := _LINE.fullmatch(line))]
    return Manifest({match[1]: match[2] for match in found})
