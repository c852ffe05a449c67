"""What records add up to: stage, result, divergence, time that is left."""

from decimal import Decimal

import pytest

from speedrun_operator.progress import (
    Compiling,
    Environment,
    LogPath,
    NewRun,
    PeakMemory,
    Progress,
    Record,
    Stage,
    StepLine,
    Validation,
    WarmupEnd,
    fold,
    parse_marker,
    remaining_seconds,
)


def train(step: int, time: int, average: float | None = 10.0) -> StepLine:
    return StepLine(step, 20, time, average)


def val(step: int, loss: str, time: int, total: int = 20) -> Validation:
    number = None if loss in ("nan", "inf") else Decimal(loss)
    return Validation(step, total, number, loss, time, 10.0)


def folded(*records: Record) -> Progress:
    progress = Progress()
    for record in records:
        progress = fold(progress, record)
    return progress


@pytest.mark.parametrize(
    ("records", "stage"),
    [
        ([], Stage.NONE),
        ([Environment(torch="2.10"), LogPath("logs/a.txt")], Stage.NONE),
        ([Compiling()], Stage.COMPILING),
        ([Compiling(), WarmupEnd()], Stage.TRAINING),
        ([Compiling(), train(25, 5)], Stage.TRAINING),
        ([val(0, "10.8", 0)], Stage.TRAINING),
        ([train(3, 30), NewRun()], Stage.NONE),
        ([train(3, 30), NewRun(), Compiling()], Stage.COMPILING),
    ],
)
def test_stage(records: list[Record], stage: Stage) -> None:
    assert folded(*records).stage is stage


@pytest.mark.parametrize(
    ("records", "final"),
    [
        pytest.param([val(10, "3.1", 90)], None, id="a validation before the last step is no result"),
        pytest.param([train(20, 200)], None, id="the last step without a validation is none either"),
        pytest.param([train(20, 200), val(20, "3.2", 205)], val(20, "3.2", 205), id="the validation at the last step"),
        pytest.param([val(20, "3.2", 205), train(20, 210)], val(20, "3.2", 205), id="and what follows changes nothing"),
        pytest.param([val(20, "3.2", 205), val(20, "3.1", 206)], val(20, "3.1", 206), id="said again: the last word"),
        pytest.param([val(20, "nan", 205)], val(20, "nan", 205), id="a result without a number"),
        pytest.param([val(20, "3.2", 205), NewRun(), train(1, 10)], None, id="another run's result"),
        pytest.param([val(2740, "3.278", 6053539, 2900)], None, id="a log that stops short of its total"),
    ],
)
def test_final(records: list[Record], final: Validation | None) -> None:
    assert folded(*records).final == final


def test_everything_of_one_run() -> None:
    progress = folded(
        Environment(python="3.12.3"),
        Environment(torch="2.10.0+cu128", cuda="12.8"),
        Compiling(),
        WarmupEnd(),
        val(0, "10.8", 0),
        train(10, 100, None),
        val(10, "3.9", 105),
        train(20, 200, 10.5),
        val(20, "3.27", 205),
        PeakMemory(30950, 47202),
    )
    assert progress == Progress(
        stage=Stage.TRAINING,
        step=20,
        total_steps=20,
        step_avg_ms=10.0,
        train_time_ms=205,
        last_validation=val(20, "3.27", 205),
        final=val(20, "3.27", 205),
        validations=3,
        peak_memory=PeakMemory(30950, 47202),
        torch="2.10.0+cu128",
    )


def test_divergence_keeps_the_step_where_it_began() -> None:
    progress = folded(val(5, "4.3", 50), val(10, "nan", 100), val(15, "inf", 150), val(20, "3.0", 200))
    assert progress.diverged_step == 10
    assert folded(val(5, "nan", 50), NewRun()).diverged_step is None


def test_the_clock_follows_the_log_where_it_falls() -> None:
    assert folded(train(10, 18872, None), train(11, 124, None)) == Progress(Stage.TRAINING, 11, 20, None, 124)


def test_the_clock_of_a_result_stays() -> None:
    assert folded(val(20, "3.2", 205), train(20, 210)) == folded(val(20, "3.2", 205))


def test_an_average_is_kept_where_a_line_has_none() -> None:
    assert folded(train(1, 10, 10.0), train(2, 20, None)).step_avg_ms == 10.0


def test_markers_change_nothing() -> None:
    marker = parse_marker("SPEEDRUN run=1 stage=train begin")
    assert marker is not None
    assert fold(folded(val(20, "3.2", 205)), marker) == folded(val(20, "3.2", 205))


@pytest.mark.parametrize(
    ("progress", "seconds"),
    [
        (Progress(), None),
        (Progress(step=5), None),
        (Progress(step=5, total_steps=20), None),
        (Progress(step=0, total_steps=1670, step_avg_ms=100.0), 167.0),
        (Progress(step=1670, total_steps=1670, step_avg_ms=100.0), 0.0),
        (Progress(step=30, total_steps=20, step_avg_ms=100.0), 0.0),
    ],
)
def test_time_that_is_left(progress: Progress, seconds: float | None) -> None:
    assert remaining_seconds(progress) == seconds
