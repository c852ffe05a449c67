"""The commit that runs, where a job looks it up itself: told by its log, and kept for the Speedrun's life. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from speedrun_operator.api.status import PlanSummary
from speedrun_operator.lifecycle.observation import Observed
from speedrun_operator.planning import RunPlan
from speedrun_operator.source.resolved import is_commit


def with_commit(plan: PlanSummary | None, seen: Iterable[Observed]) -> PlanSummary | None:
    """`plan` with the commit and layout that a log tells. What is known already stays, whatever a log says."""
    if plan is None or plan.source is None or plan.source.commit or plan.source.path:
        return plan
    for each in seen:
        told = dict(each.log.code) if each.log is not None else {}
        commit, layout = told.get("commit"), told.get("layout", "")
        if is_commit(commit):
            layout = layout if re.fullmatch(r"[a-z][a-z0-9-]{0,62}", layout) else ""
            source = plan.source.model_copy(update={"commit": commit, "layout": layout or None})
            return plan.model_copy(update={"commit": commit, "source": source})
    return plan


def is_open(plan: object) -> bool:
    """Whether the next job will look its code up: then no other may at the same time, since it could find another."""
    return isinstance(plan, RunPlan) and plan.source is not None and not (plan.source.commit or plan.source.path)
