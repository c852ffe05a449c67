"""The parser over whole logs: pieces, source code, several runs, echoes, state that survives a restart."""

from decimal import Decimal
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedrun_operator.progress import ParserState, Progress, Record, StepLine, Validation, feed, fold

FORMAT = "modded-nanogpt"
SEPARATOR = "=" * 100


def records_of(*chunks: bytes, state: ParserState | None = None) -> list[Record]:
    state = state or ParserState(FORMAT)
    records: list[Record] = []
    for chunk in chunks:
        state, found = feed(state, chunk)
        records += found
    return records


def read(*lines: str) -> list[Record]:
    return records_of("".join(f"{line}\n" for line in lines).encode())


def progress_of(records: list[Record]) -> Progress:
    progress = Progress()
    for record in records:
        progress = fold(progress, record)
    return progress


def val(step: int, total: int, loss: str, time: int) -> str:
    return f"step:{step}/{total} val_loss:{loss} train_time:{time}ms step_avg:10.00ms"


def train(step: int, total: int, time: int) -> str:
    return f"step:{step}/{total} train_time:{time}ms step_avg:10.00ms"


def summary(records: list[Record]) -> list[str]:
    """Records in short: `v10` and `t10` for lines of step 10, the class name for others."""
    short = {StepLine: "t", Validation: "v"}
    return [
        f"{short[type(record)]}{record.step}" if isinstance(record, StepLine | Validation) else type(record).__name__
        for record in records
    ]


DUMP = ["    if last_step:", '        print0("step:")', val(10, 10, "0.4", 1), train(9, 10, 1), "Resetting Model"]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param(["import os", *DUMP, SEPARATOR, val(0, 10, "10.8", 0)], ["v0"], id="source first"),
        pytest.param([SEPARATOR, *DUMP, SEPARATOR, val(0, 10, "10.8", 0)], ["v0"], id="old form: separator, source"),
        pytest.param(["import os", *DUMP], [], id="nothing but source"),
        pytest.param(["import os", *DUMP, "=" * 99, "=" * 101, val(1, 10, "3", 1)], [], id="exactly 100 end it"),
        pytest.param(
            ["import os", *DUMP, "SPEEDRUN run=0 begin", train(1, 9, 1)], ["Marker", "t1"], id="a marker ends it"
        ),
        pytest.param(
            ["Running Triton version 3.6.0", SEPARATOR, train(1, 9, 1), SEPARATOR, train(2, 9, 2)],
            ["Environment", "t1", "t2"],
            id="stdout has separators but no source",
        ),
        pytest.param(
            ["SPEEDRUN attempt", "import os", train(1, 9, 1)], ["Marker", "NewRun", "t1"], id="only line 1 counts"
        ),
        pytest.param(
            ['        log0(f"step:{step}/{n} val_loss:{val_loss:.4f}")', "=" * 20, val(0, 9, "10.8", 0)],
            ["v0"],
            id="a torn piece of source",
        ),
    ],
)
def test_source_code_is_no_progress(lines: list[str], expected: list[str]) -> None:
    assert summary(read(*lines)) == expected


LAST_THREE = [val(2730, 2740, "3.281", 27), val(2735, 2740, "3.280", 28), val(2740, 2740, "3.278", 29)]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param([train(1, 10, 1), train(2, 10, 2), train(2, 10, 2)], ["t1", "t2", "t2"], id="one run"),
        pytest.param([train(10, 10, 1), val(10, 10, "3.3", 1)], ["t10", "v10"], id="validation after its step"),
        pytest.param([train(10, 20, 900), train(11, 20, 1)], ["t10", "t11"], id="the clock may start over"),
        pytest.param([val(10, 10, "3.3", 9), val(0, 10, "10.8", 0)], ["v10", "NewRun", "v0"], id="back to step 0"),
        pytest.param([train(1194, 1194, 9), train(25, 1194, 5)], ["t1194", "NewRun", "t25"], id="back, but not to 0"),
        pytest.param([train(10, 20, 9), train(25, 30, 5)], ["t10", "NewRun", "t25"], id="another total"),
        pytest.param(
            [
                train(5, 10, 9),
                "Running Python 3.12.3 (main)",
                "Running Triton version 3",
                "Compiling model",
                train(25, 10, 5),
            ],
            ["t5", "NewRun", "Environment", "Environment", "Compiling", "t25"],
            id="a program that starts again",
        ),
        pytest.param(
            [*LAST_THREE, "=== seed 2 exit_status=0 end 10:00 ===", *LAST_THREE], ["v2730", "v2735", "v2740"], id="echo"
        ),
        pytest.param(
            [val(0, 1, "10.8", 0), val(1, 1, "3.1", 5), val(0, 1, "10.8", 0), val(1, 1, "3.1", 5)],
            ["v0", "v1", "NewRun", "v0", "v1"],
            id="a run from step 0 is never an echo",
        ),
        pytest.param(
            [train(1, 9, 1), val(9, 9, "3.1", 9), train(1, 9, 1), val(9, 9, "3.1", 9)],
            ["t1", "v9", "NewRun", "t1", "v9"],
            id="nor is what follows a step that went back",
        ),
        pytest.param(
            [
                val(1, 2, "3.5", 2),
                val(2, 2, "3.1", 5),
                "SPEEDRUN run=1 begin",
                val(1, 2, "3.5", 2),
                val(2, 2, "3.1", 5),
            ],
            ["v1", "v2", "Marker", "NewRun", "v1", "v2"],
            id="nor is a run after our marker",
        ),
        pytest.param(
            [train(5, 9, 5), "SPEEDRUN attempt job=1", train(6, 9, 1)], ["t5", "Marker", "NewRun", "t6"], id="attempt"
        ),
    ],
)
def test_runs_in_one_log(lines: list[str], expected: list[str]) -> None:
    assert summary(read(*lines)) == expected


def test_an_attempt_that_starts_over_has_nothing_of_the_one_before() -> None:
    first = [val(0, 1750, "10.8", 0), val(500, 1750, "3.6", 60000)]
    second = [val(0, 1750, "10.8", 0), val(1750, 1750, "3.278", 208000)]
    progress = progress_of(read("SPEEDRUN attempt restart=0", *first, "SPEEDRUN attempt restart=1", *second))
    assert progress.final is not None
    assert (progress.final.val_loss, progress.final.train_time_ms, progress.validations) == (
        Decimal("3.278"),
        208000,
        2,
    )


def test_a_metric_is_found_behind_a_progress_bar() -> None:
    bar = b"dl: 10%|#         |\rdl: 55%|#####     |\rdl:100%|##########|\r"
    line = b"step:125/1750 val_loss:4.3000 train_time:15000ms step_avg:120.00ms\r\n"
    assert records_of(bar + b"dl: 1%\r" * 300_000 + line) == [
        Validation(125, 1750, Decimal("4.3"), "4.3000", 15000, 120.0)
    ]


def test_reading_that_starts_within_a_line_leaves_it_out() -> None:
    state = ParserState.after_gap(FORMAT)
    torn = b"\x88 step:9/20 train_time:9ms\n"
    assert (
        summary(records_of(b"step:2/20 val_loss:3.9 train_time:9ms\n", torn, train(10, 20, 9).encode(), state=state))
        == []
    )
    assert summary(records_of(torn, b"import os\n", train(10, 20, 9).encode() + b"\n", state=state)) == ["t10"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "null",
        '{"format": "none"}',
        "[" * 100_000,
        ParserState(FORMAT).to_json().replace(FORMAT, "other"),
    ],
    ids=["empty", "no fields", "list", "null", "other fields", "deep", "other format"],
)
def test_a_state_that_cannot_be_read_says_what_to_do(text: str) -> None:
    with pytest.raises(ValueError, match="read the log again from its start"):
        ParserState.from_json(text)


def test_an_unknown_format_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown log format 'nanogpt': use one of modded-nanogpt"):
        ParserState("nanogpt")


PIECES = [
    "\n", "\r", "\r\n", "\0", "\x1b[31m", "\u2588", "=" * 100, "import os", "nan", "inf", "1e99", "9" * 30, "-", ":",
    "/", " ", "0: ", "step:0/3", "step:1/3", "step:3/3", "step:", " val_loss:", " train_time:", "3.28", "ms", "s",
    "x" * 5000, " step_avg:", "SPEEDRUN ", "attempt", "run=0", "time=", "Compiling model", "Resetting Model",
    "logs/a.txt", "Running PyTorch 2 compiled for CUDA 1",
    "peak memory allocated: 1 MiB reserved: 2 MiB",
    "step:1/3 val_loss:3.5 train_time:5ms\n", "step:2/3 train_time:7.5s step_avg:nanms\n",
    "step:3/3 val_loss:nan train_time:9ms step_avg:3.00ms\n",
]  # fmt: skip
logs = st.lists(st.one_of(st.sampled_from(PIECES).map(str.encode), st.binary(max_size=12)), max_size=40).map(b"".join)


@given(logs, st.lists(st.integers(min_value=0, max_value=400), max_size=12))
def test_cutting_and_restarting_make_no_difference(log: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(log)]
    state = ParserState(FORMAT)
    records: list[Record] = []
    for start, end in pairwise(edges):
        state, found = feed(ParserState.from_json(state.to_json()), log[start:end])
        records += found
    assert records == records_of(log)
    assert progress_of(records) == progress_of(records_of(log))


@given(logs, logs)
def test_an_unfinished_line_says_nothing(log: bytes, tail: bytes) -> None:
    unfinished = tail.replace(b"\n", b"").replace(b"\r", b"")
    assert records_of(log, b"\n", unfinished) == records_of(log, b"\n")


@given(st.binary())
def test_any_bytes_are_read(log: bytes) -> None:
    state, records = feed(ParserState(FORMAT), log)
    assert ParserState.from_json(state.to_json()) == state
    assert progress_of(list(records)).final is None
