"""Logs of real runs, held against figures that were worked out from the whole originals."""

import json
from pathlib import Path
from typing import Any

import pytest

from speedrun_operator.progress import ParserState, Progress, StepLine, Validation, feed, fold

LOGS = Path(__file__).parents[4] / "shared" / "data" / "logs"
OURS = {"ms-plain", "ms-warmup", "ms-thinned"}

if not (LOGS / "index.jsonl").exists():
    pytest.skip("the reference logs are not beside this checkout", allow_module_level=True)

INDEX: list[dict[str, Any]] = [json.loads(line) for line in (LOGS / "index.jsonl").read_text().splitlines()]


def read(name: str, chunk_size: int) -> tuple[Progress, list[int], list[int]]:
    """The progress after the whole log, and the steps of its training and validation lines."""
    log = (LOGS / name).read_bytes()
    state, progress = ParserState("modded-nanogpt"), Progress()
    train_steps: list[int] = []
    val_steps: list[int] = []
    for start in range(0, len(log), chunk_size):
        state, records = feed(state, log[start : start + chunk_size])
        for record in records:
            progress = fold(progress, record)
            if isinstance(record, StepLine):
                train_steps.append(record.step)
            if isinstance(record, Validation):
                val_steps.append(record.step)
    return progress, train_steps, val_steps


def test_the_index_has_our_families() -> None:
    assert {entry["family"] for entry in INDEX} >= OURS


@pytest.mark.parametrize("chunk_size", [7, 65536])
@pytest.mark.parametrize("entry", [each for each in INDEX if each["family"] in OURS], ids=lambda entry: entry["path"])
def test_our_forms_are_read_whole(entry: dict[str, Any], chunk_size: int) -> None:
    progress, train_steps, val_steps = read(entry["path"], chunk_size)
    assert (len(train_steps), len(val_steps)) == (entry["n_train"], entry["n_val"])
    assert (progress.step, progress.total_steps) == (entry["final_step"], entry["total_steps"])
    assert progress.torch == entry["torch"]
    last = progress.last_validation
    assert last is not None
    assert last.val_loss is not None
    assert (last.step, float(last.val_loss)) == (entry["final_val_step"], entry["final_val_loss"])
    assert (last.train_time_ms, last.step_avg_ms) == (entry["final_train_time_ms"], entry["step_avg_ms"])
    assert progress.final == (None if "no_final_val" in entry["anomalies"] else last)
    memory = progress.peak_memory
    assert (memory.allocated_mib if memory else None) == entry["peak_alloc_mib"]
    assert (memory.reserved_mib if memory else None) == entry["peak_reserved_mib"]
    assert progress.diverged_step is None


@pytest.mark.parametrize(
    "entry", [each for each in INDEX if each["family"] not in OURS], ids=lambda entry: entry["path"]
)
def test_other_forms_give_no_false_result(entry: dict[str, Any]) -> None:
    progress, _, _ = read(entry["path"], 65536)
    if entry["total_steps"] is None or "ends_before_total" in entry["anomalies"]:
        assert progress.final is None
    if progress.final is not None:
        assert progress.final.step == entry["final_val_step"]
        assert float(progress.final.val_loss or 0) == entry["final_val_loss"]
        assert progress.final.train_time_ms == entry["final_train_time_ms"]
