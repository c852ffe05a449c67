"""Finished is final; and what stands there at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from speedrun_operator.lifecycle.observation import Accepted
from speedrun_operator.lifecycle.situation import Decision
from unit.builders import REPLAY, STARTED, TRAINING, at, ended, finished_log, running, unseen
from unit.lifecycle import (
    test_lives_given_up,
    test_lives_in_trouble,
    test_lives_of_jobs,
    test_lives_of_several_runs,
    test_lives_suspended,
)
from unit.lifecycle.lives import NO_LOGIN, SILENCE, Life, Step, edited, heard, seen, woken
from unit.lifecycle.rows import ACCEPTED, AT_WORK, OPENED, RUNS, Row

SIMPLE = {**test_lives_of_jobs.LIVES, **test_lives_in_trouble.LIVES}
LIVES: dict[str, tuple[Mapping[str, Any], list[Row]]] = {
    **{name: ({}, rows) for name, rows in SIMPLE.items()},
    **test_lives_of_several_runs.LIVES,
    **test_lives_suspended.LIVES,
    **test_lives_given_up.LIVES,
}
FINISHED = [name for name, (_, rows) in LIVES.items() if rows[-1].phase in ("Succeeded", "Missed", "Failed")]


def lived(name: str) -> Life:
    spec, rows = LIVES[name]
    life = Life({**REPLAY, **spec})
    for row in rows:
        life.live(row.step, row.after)
    return life


@pytest.mark.parametrize("name", FINISHED)
@pytest.mark.parametrize(
    "step",
    [
        pytest.param(woken(), id="woken"),
        pytest.param(heard(Accepted("99", at(900))), id="a late answer to sbatch"),
        pytest.param(seen(running(TRAINING)), id="a job that runs"),
        pytest.param(seen(ended(finished_log("3.1"))), id="another result"),
        pytest.param(seen(unseen(1000)), id="a lost job"),
        pytest.param(SILENCE, id="silence"),
        pytest.param(NO_LOGIN, id="no login"),
        pytest.param(edited(suspend=True), id="suspended"),
        pytest.param(edited(activeDeadlineSeconds=1), id="past a deadline"),
        pytest.param(woken(gone={0, 1}), id="a late answer to a cancellation"),
    ],
)
def test_finished_is_final(name: str, step: Step) -> None:
    life = lived(name)
    before = life.status
    decision = life.live(step)
    assert decision == Decision(before)


def test_a_changed_spec_after_the_end_changes_nothing() -> None:
    life = lived("a run that misses its target")
    life.spec, life.metadata = {"recipe": {"name": "replay"}, "target": 9.9}, {"generation": 2}
    before = life.status
    assert life.live(woken()).status == before


def test_the_target_is_that_of_the_plan_that_was_submitted() -> None:
    life = Life({"recipe": {"name": "replay"}, "target": 3.5})
    for row in AT_WORK:
        life.live(row.step)
    status = life.live(seen(ended(finished_log("3.49")))).status
    assert (status.phase, status.plan and status.plan.target) == ("Succeeded", 3.5)


def test_times_of_the_way_through_are_in_the_clock() -> None:
    life = Life()
    for row in [OPENED, ACCEPTED, RUNS]:
        life.live(row.step)
    log = STARTED.begin("code", 3).end("code", 4).begin("data", 4).end("data", 9).begin("image", 9).end("image", 10)
    log = log.begin("train", 10).line("Compiling model").step(19).validation("3.27", time=58432)
    clock = life.live(seen(ended(log.end("train", 90).finish()))).status.clock
    assert clock is not None
    assert clock.model_dump() == {
        "queue_milliseconds": 2000,
        "image_milliseconds": 1000,
        "data_milliseconds": 6000,
        "compile_milliseconds": 80000 - 58432,
        "train_milliseconds": 58432,
        "wall_milliseconds": 97000,
    }
