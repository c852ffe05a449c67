"""The form of a rule."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum


class Retry(StrEnum):
    """Whether an allocation that failed so is followed by another.

    `LIMITED`: as far as `backoffLimit` lets. `FREE`: outside that limit, up to a bound of its own.
    """

    NEVER = "Never"
    LIMITED = "Limited"
    FREE = "Free"


class Weight(StrEnum):
    """What a sign is worth: one that is `GENERAL` counts when nothing specific was seen, a `WRAPPER` comes last."""

    SPECIFIC = "Specific"
    GENERAL = "General"
    WRAPPER = "Wrapper"


@dataclass(frozen=True, slots=True)
class Sign:
    """Something in a line of a log: `text` as it stands there, and around it `pattern` where the text is not enough.

    Both may be anywhere in the line: slurmstepd's own lines are found in the middle of others.
    """

    text: str
    pattern: re.Pattern[str] | None = None

    def is_in(self, line: str) -> bool:
        return self.text in line and (self.pattern is None or self.pattern.search(line) is not None)


def sign(text: str, pattern: str | None = None) -> Sign:
    return Sign(text, re.compile(pattern) if pattern is not None else None)


@dataclass(frozen=True, slots=True)
class Rule:
    """One cause. `says`: what happened. `remedy`: what a person can do about it, or what the operator does.

    `infrastructure`: it says nothing of the program, so that a run that reached Training may be run again for it, too.
    `wait_seconds`: the next allocation is not opened before, whatever the back-off is.
    `in_pods`: the remedy where the run is a pod, if it is another.
    `avoids`: what failed is the node, so that the next allocation of the run keeps off it where there is another.
    `ends`: words of backends for how a job ended that prove it. `signs`: what proves it in the log.
    Neither holds text of a log: that may hold a secret.
    """

    reason: str
    says: str
    remedy: str
    signs: tuple[Sign, ...] = ()
    ends: tuple[str, ...] = ()
    infrastructure: bool = False
    retry: Retry = Retry.NEVER
    wait_seconds: int = 0
    weight: Weight = Weight.SPECIFIC
    in_pods: str = ""
    avoids: bool = False

    @property
    def message(self) -> str:
        return f"{self.says}: {self.remedy}" if self.remedy else self.says

    def runs_again(self, *, trained: bool) -> bool:
        """Whether a run that this ended is run again. `trained`: it had reached Training."""
        return self.retry is not Retry.NEVER and (self.infrastructure or not trained)
