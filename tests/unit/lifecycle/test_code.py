"""The commit that a pod looks up itself: told by its log, kept for good, and waited for by the pods that follow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from speedrun_operator.api.status import Status
from speedrun_operator.lifecycle.code import with_commit
from speedrun_operator.lifecycle.decide import decide
from speedrun_operator.lifecycle.observation import JobState, Observed
from speedrun_operator.planning import RunPlan, plan
from speedrun_operator.recipes.recipe import shipped
from speedrun_operator.source.resolved import Source
from unit.builders import SITE, JobLog, at, plan_of, resource, situation

COMMIT, OTHER = "a" * 40, "b" * 40
SPEC: dict[str, Any] = {
    "recipe": {"name": "modded-nanogpt", "source": {"revision": "mine"}},
    "backend": "Pods",
    "pods": {"image": "registry.test/trainer:1"},
    "runs": 3,
    "parallelism": 2,
}


def told(*commits: str) -> Observed:
    log = JobLog().attempt()
    for each in commits:
        log = log.mark(f"code commit={each} layout=package")
    return Observed(JobState.RUNNING, at(5), job_id="17", node="node-a", started=at(4), log=log.read())


def step(status: Status | None, made: RunPlan | None = None, **changes: Any) -> Status:
    each = resource(SPEC, status)
    return decide(situation(each, plan=made or plan_of(each), **changes)).status


def test_one_pod_looks_the_code_up_and_the_others_get_that_commit() -> None:
    status = step(None)
    assert (len(status.allocations), status.plan and status.plan.commit) == (1, None)
    status = step(status, observed={0: told(COMMIT)})
    assert status.plan is not None and status.plan.source is not None
    assert (status.plan.commit, status.plan.source.commit, status.plan.source.layout) == (COMMIT, COMMIT, "package")
    known = plan(resource(SPEC).spec, shipped(), SITE, Source.of(status.plan.source))  # type: ignore[arg-type]
    assert isinstance(known, RunPlan)
    status = step(status, known, observed={0: told(OTHER)})
    assert len(status.allocations) == 2
    assert status.plan is not None and status.plan.commit == COMMIT


def test_the_first_word_of_a_log_counts_and_only_where_nothing_is_known() -> None:
    made = plan_of(resource(SPEC))
    assert isinstance(made, RunPlan)
    found = with_commit(made.summary(), [told(COMMIT, OTHER)])
    assert found is not None and found.commit == COMMIT
    known = replace(made, source=Source("https://a/b.git", "mine", OTHER)).summary()
    assert with_commit(known, [told(COMMIT)]) is known


@pytest.mark.parametrize("commit", ["abc", COMMIT.upper(), f"{COMMIT}0"])
def test_what_is_no_commit_is_not_taken_for_one(commit: str) -> None:
    made = plan_of(resource(SPEC))
    assert isinstance(made, RunPlan)
    found = with_commit(made.summary(), [told(commit)])
    assert found is not None and found.commit is None
