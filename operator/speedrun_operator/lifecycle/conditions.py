"""Conditions: set one, keeping the time of its last transition."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from speedrun_operator.api.phases import ConditionType
from speedrun_operator.api.status import Condition

MESSAGE_LIMIT = 1024
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,127}")


@dataclass(frozen=True, slots=True)
class Say:
    """What a condition shall say. `status` is True, False or Unknown."""

    type: ConditionType
    status: str
    reason: str
    message: str = ""


def word(text: str) -> str:
    """The first word of `text`, as a reason must be one: Slurm says `ReqNodeNotAvail, UnavailableNodes:node[1-9]`."""
    found = _WORD.search(text)
    return found[0] if found else "Unknown"


def update(
    conditions: tuple[Condition, ...], said: Iterable[Say], *, generation: int, now: datetime
) -> tuple[Condition, ...]:
    """`conditions` with what is said, in the order of ConditionType; the rest stays as it was."""
    by_type = {each.type: each for each in conditions}
    for say in said:
        old = by_type.get(say.type)
        moved = old is None or old.status != say.status
        by_type[say.type] = Condition(
            type=say.type,
            status=say.status,
            reason=word(say.reason),
            message=say.message[:MESSAGE_LIMIT],
            observed_generation=generation,
            last_transition_time=now.replace(microsecond=0) if moved or old is None else old.last_transition_time,
        )
    return tuple(by_type[each] for each in ConditionType if each in by_type)
