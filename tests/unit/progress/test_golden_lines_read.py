"""The lines that our trainer prints, fixed by one file that its tests and these read: each is understood here."""

from pathlib import Path

from speedrun_operator.progress import (
    Compiling,
    Environment,
    LogPath,
    ParserState,
    PeakMemory,
    StepLine,
    Validation,
    WarmupEnd,
    feed,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "loglines.txt"


def golden_lines() -> list[str]:
    lines = GOLDEN.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


KINDS: list[tuple[str, type]] = [
    ("Compiling model", Compiling),
    ("Resetting Model", WarmupEnd),
    ("Running Python", Environment),
    ("Running PyTorch", Environment),
    ("Running Triton", Environment),
    ("peak memory", PeakMemory),
    ("logs/", LogPath),
]


def kinds_of(line: str) -> list[type]:
    """What a line must give by the plainest of rules, for the parser to agree with; other lines give nothing."""
    if line.startswith("step:"):
        return [Validation if " val_loss:" in line else StepLine]
    return [kind for prefix, kind in KINDS if line.startswith(prefix)]


def test_every_kind_that_the_operator_waits_for_is_there() -> None:
    found = {kind for line in golden_lines() for kind in kinds_of(line)}
    assert found >= {StepLine, Validation, Compiling, WarmupEnd, Environment, PeakMemory}


def test_each_line_is_understood() -> None:
    for line in golden_lines():
        _, records = feed(ParserState("modded-nanogpt"), f"{line}\n".encode())
        assert [type(record) for record in records] == kinds_of(line), line
        for record in records:
            if isinstance(record, StepLine | Validation):
                assert f"step:{record.step}/{record.total_steps} " in line
                assert f"train_time:{record.train_time_ms}ms" in line
            if isinstance(record, Validation):
                assert f"val_loss:{record.text} " in line
                assert record.is_diverged == (record.text.lstrip("+-").lower() in ("nan", "inf"))
