"""The log of one allocation: which run a line belongs to, which stage it is in, and what a hostile line may not do."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speedrun_operator.progress import Marker, ParserState, feed
from speedrun_operator.progress.allocation import (
    MOST_RUNS,
    MOST_STAGES,
    AllocationProgress,
    RunRecord,
    StageRecord,
    add,
)
from unit.builders import NOON, STARTED, TRAINING, JobLog, finished_log

T0 = round(NOON.timestamp() * 1000)


def run(log: JobLog, index: int = 0) -> RunRecord:
    found = log.read().run(index)
    assert found is not None
    return found


def test_a_whole_log() -> None:
    log = STARTED.begin("data", 1).end("data", 4).begin("train", 5).step(19).validation("3.27").end("train", 90)
    read = log.finish().read()
    assert read.exit_code == 0
    (only,) = read.runs
    assert (only.index, only.exit_code) == (0, 0)
    assert only.stages == (
        StageRecord("data", T0 + 1000, T0 + 4000, 0),
        StageRecord("train", T0 + 5000, T0 + 90_000, 0),
    )
    assert only.stage == only.stages[-1]
    assert only.progress.final is not None


@pytest.mark.parametrize(
    ("log", "stages"),
    [
        pytest.param(STARTED, [], id="none yet"),
        pytest.param(STARTED.begin("data", 1), [("data", T0 + 1000, None, None)], id="begun"),
        pytest.param(STARTED.begin("data").end("data", code=3), [("data", T0, T0, 3)], id="failed"),
        pytest.param(STARTED.begin("data").end("image"), [("data", T0, None, None)], id="an end of another stage"),
        pytest.param(STARTED.end("data"), [], id="an end without a begin"),
        pytest.param(
            STARTED.begin("data").begin("data", 2),
            [("data", T0, None, None), ("data", T0 + 2000, None, None)],
            id="twice",
        ),
        pytest.param(STARTED.line("SPEEDRUN run=0 stage=data begin"), [("data", None, None, None)], id="no time"),
        pytest.param(
            STARTED.line("SPEEDRUN run=0 stage=data begin time=soon"), [("data", None, None, None)], id="no number"
        ),
        pytest.param(STARTED.line("SPEEDRUN run=0 stage= begin"), [], id="no name"),
        pytest.param(STARTED.line("SPEEDRUN run=0 stage=Data begin"), [], id="no name of ours"),
        pytest.param(STARTED.line(f"SPEEDRUN run=0 stage={'x' * 64} begin"), [], id="a name that is too long"),
        pytest.param(STARTED.line("SPEEDRUN run=0 stage=a%0Ab begin"), [], id="a name with a line end"),
        pytest.param(STARTED.line("SPEEDRUN run=0 stage=data"), [], id="neither begin nor end"),
    ],
)
def test_stages(log: JobLog, stages: list[tuple[str, int | None, int | None, int | None]]) -> None:
    assert list(run(log).stages) == [StageRecord(*each) for each in stages]


def test_several_runs_in_one_log() -> None:
    log = finished_log("3.27").mark("run=1 begin").begin("train", run=1).step(3).validation("4.0", 10)
    read = log.mark("run=2 begin").begin("data", run=2).read()
    assert [each.index for each in read.runs] == [0, 1, 2]
    first, second, third = read.runs
    assert first.progress.final is not None and first.exit_code == 0
    assert (second.progress.step, second.progress.final, second.exit_code) == (10, None, None)
    assert third.progress.step is None
    assert third.stage is not None and third.stage.name == "data"


def test_lines_belong_to_the_run_whose_marker_came_last() -> None:
    log = STARTED.mark("run=1 begin").mark("run=0 stage=train begin").step(7)
    assert (run(log, 0).progress.step, run(log, 1).progress.step) == (7, None)


def test_a_run_that_begins_again_starts_from_nothing() -> None:
    assert run(TRAINING.mark("run=0 begin")) == RunRecord(0)


def test_an_attempt_takes_back_all_runs() -> None:
    log = finished_log("3.27").mark("run=1 begin").mark("attempt job=18")
    assert log.read() == AllocationProgress()
    assert run(log.mark("run=0 begin").begin("train").step(2)).progress.final is None


def test_lines_between_two_runs_belong_to_none() -> None:
    log = finished_log("3.27").line("step:3/20 train_time:7ms step_avg:7ms", "step:4/20 val_loss:9.9 train_time:9ms")
    assert log.read() == finished_log("3.27").read()
    assert run(log.begun(1).step(5), 1).progress.step == 5


def test_lines_before_the_first_run_belong_to_none() -> None:
    assert JobLog().step(3).validation("3.2").read() == AllocationProgress()


@pytest.mark.parametrize(
    "line",
    [
        "SPEEDRUN",
        "SPEEDRUN run=0",
        "SPEEDRUN run=-1 begin",
        f"SPEEDRUN run={MOST_RUNS} begin",
        "SPEEDRUN run=999999999999999999999 begin",
        "SPEEDRUN run=zero begin",
        "SPEEDRUN run=0 run=1 begin",
        "SPEEDRUN begin",
        " SPEEDRUN run=0 begin",
        "x SPEEDRUN attempt job=1",
        "SPEEDRUN run=0 begin\x07",
        "SPEEDRUN  attempt",
    ],
)
def test_a_line_that_is_no_marker_of_a_run_changes_nothing(line: str) -> None:
    assert TRAINING.line(line).read() == TRAINING.read()


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("SPEEDRUN job end exit=0", 0),
        ("SPEEDRUN job end exit=143 time=1", 143),
        ("SPEEDRUN job end", None),
        ("SPEEDRUN job end exit=", None),
        ("SPEEDRUN job end exit=ok", None),
    ],
)
def test_the_end_of_the_job(line: str, code: int | None) -> None:
    read = TRAINING.line(line).read()
    assert (read.exit_code, read.runs) == (code, TRAINING.read().runs)


@pytest.mark.parametrize(
    ("line", "at_limit", "stopped"),
    [
        ("SPEEDRUN job limit", True, False),
        ("SPEEDRUN job limit time=1764545000.123", True, False),
        ("SPEEDRUN job stopped time=1764545000.123", False, True),
        ("SPEEDRUN limit", False, False),
        ("SPEEDRUN stopped", False, False),
        ("SPEEDRUN job=limit", False, False),
        (" SPEEDRUN job limit", False, False),
        ("a SPEEDRUN job stopped", False, False),
    ],
)
def test_what_the_job_was_told(line: str, at_limit: bool, stopped: bool) -> None:
    read = TRAINING.line(line).read()
    assert (read.at_limit, read.stopped, read.runs) == (at_limit, stopped, TRAINING.read().runs)
    again = TRAINING.line(line).job(18).read()
    assert (again.at_limit, again.stopped) == (False, False), "another attempt is told anew"


def test_a_program_that_prints_markers_without_end_costs_no_memory() -> None:
    log = STARTED
    for number in range(MOST_STAGES + 20):
        log = log.begin("data", number)
    for number in range(MOST_RUNS + 20):
        log = log.mark(f"run={number} begin")
    read = log.read()
    assert len(read.runs) == MOST_RUNS
    assert all(len(each.stages) <= MOST_STAGES for each in read.runs)


lines = st.lists(
    st.sampled_from(
        [*finished_log("3.27").lines, *finished_log("nan").lines, "SPEEDRUN attempt", "SPEEDRUN run=1 begin"]
    )
    | st.text(max_size=20),
    max_size=30,
)


@settings(deadline=None)
@given(lines, st.lists(st.integers(0, 600), max_size=6))
def test_how_the_log_was_cut_makes_no_difference(made: list[str], cuts: list[int]) -> None:
    log = JobLog(tuple(made))
    state, progress, start = ParserState("modded-nanogpt"), AllocationProgress(), 0
    for end in [*sorted(cuts), len(log.text)]:
        state, records = feed(state, log.text[start:end])
        for record in records:
            progress = add(progress, record)
        start = max(start, min(end, len(log.text)))
    assert progress == log.read()


words = st.sampled_from(["begin", "end", "job", "attempt"]) | st.text(max_size=9)
fields = st.tuples(
    st.sampled_from(["run", "stage", "exit", "time", "job"]), st.sampled_from(["0", "1", "data"]) | st.text()
)


@settings(deadline=None)
@given(st.lists(st.builds(Marker, st.lists(words).map(tuple), st.lists(fields).map(tuple)), max_size=20))
def test_no_marker_breaks_it(markers: list[Marker]) -> None:
    progress = AllocationProgress()
    for marker in markers:
        progress = add(progress, marker)
    indices = [each.index for each in progress.runs]
    assert len(set(indices)) == len(indices) <= MOST_RUNS
