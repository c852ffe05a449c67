"""The end of a Speedrun: what its runs' results come to.

With several runs the mean decides between Succeeded and Missed. A diverged run is a result above the target without a
number, so the mean is that of the others and the target is missed. Fewer results than wanted is Failed.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from speedrun_operator.api.phases import AllocationState, Phase, Reason
from speedrun_operator.api.status import Allocation, Run
from speedrun_operator.lifecycle.runs import seconds_text

ZERO = Decimal(0)
LOSS_DIGITS = 6  # behind the point, of a mean


@dataclass(frozen=True, slots=True)
class Outcome:
    """Phase, reason, message and numbers of a finished Speedrun. Times are milliseconds."""

    phase: Phase
    reason: str
    message: str
    val_loss: float | None = None
    train_time_ms: int | None = None

    def numbers(self) -> dict[str, object]:
        spent = self.train_time_ms
        return {
            "val_loss": self.val_loss,
            "train_time": seconds_text(spent) if spent is not None else None,
            "train_time_ms": spent,
        }


def outcome(runs: tuple[Run, ...], allocations: tuple[Allocation, ...], target: Decimal | None) -> Outcome | None:
    """What it came to, once every run is finished and no allocation is live; None before."""
    live = any(each.state is not AllocationState.ENDED for each in allocations)
    if live or not runs or not all(each.phase.finished for each in runs):
        return None
    counted = [each for each in runs if each.counted]
    numbered = [each for each in counted if each.val_loss is not None]
    losses = [Decimal(repr(each.val_loss)) for each in numbered]
    times = [each.train_time_ms for each in numbered if each.train_time_ms is not None]
    mean = sum(losses, ZERO) / len(losses) if losses else None
    loss = round(float(mean), LOSS_DIGITS) if mean is not None else None
    spent = round(sum(times) / len(times)) if times else None
    if len(counted) < len(runs):
        failed = next(each for each in runs if not each.counted)
        missing = f"{len(runs) - len(counted)} of {len(runs)} runs have no result; run {failed.index}: "
        message = f"{missing if len(runs) > 1 else ''}{failed.message or failed.reason}"
        return Outcome(Phase.FAILED, failed.reason or Reason.NO_RESULT.value, message, loss, spent)
    if len(runs) == 1:
        return Outcome(runs[0].phase, runs[0].reason or "", runs[0].message or "", loss, runs[0].train_time_ms)
    if len(numbered) < len(counted):
        bad = next(each for each in counted if each.val_loss is None)
        return Outcome(Phase.MISSED, Reason.DIVERGED.value, f"run {bad.index} diverged: {bad.message}", loss, spent)
    assert mean is not None and target is not None
    reached = mean <= target
    by = f"missed by {(mean - target).normalize():.2g}"
    message = f"mean val_loss {loss} of {len(runs)} runs: target {target} {'reached' if reached else by}"
    if reached:
        return Outcome(Phase.SUCCEEDED, Reason.TARGET_REACHED.value, message, loss, spent)
    return Outcome(Phase.MISSED, Reason.TARGET_MISSED.value, message, loss, spent)
