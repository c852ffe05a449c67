"""What `check` finds: one line a thing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One line of the report. `good` None: could not be looked at."""

    subject: str
    good: bool | None
    text: str

    def __str__(self) -> str:
        word = {True: "ok", False: "FAULT", None: "unknown"}[self.good]
        return f"{self.subject:<12} {word:<8} {self.text}"
