"""The run as its user sees it: lines, losses and exit codes."""

import math
import re
from pathlib import Path

import pytest

from speedrun_trainer.data import MAKE
from speedrun_trainer.source import MarkovSource
from speedrun_trainer.train import main

STEP = re.compile(r"step:(\d+)/(\d+) (?:val_loss:(\S+) )?train_time:(\d+)ms step_avg:(\d+\.\d\d)ms")
SHORT = ["--val-tokens", "8192", "--val-every", "0"]


def train(capsys: pytest.CaptureFixture[str], data: Path, *options: str) -> tuple[int, list[str], str]:
    """Exit code, lines of stdout, and stderr of a run inside this process."""
    capsys.readouterr()
    code = main(["--data", str(data), *options])
    out, err = capsys.readouterr()
    return code, out.splitlines(), err


def val_losses(lines: list[str]) -> dict[int, str]:
    matches = [match for line in lines if (match := STEP.fullmatch(line))]
    return {int(match[1]): match[3] for match in matches if match[3]}


def test_lines_of_a_run_in_order(smoke_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines, err = train(capsys, smoke_data, "--steps", "5", "--val-tokens", "8192", "--val-every", "2")
    assert (code, err) == (0, "")
    assert lines[0].startswith("Running Python 3.")
    assert re.fullmatch(r"Running PyTorch \S+ compiled for CUDA (None|[\d.]+)", lines[1])
    start = lines.index("=" * 100)
    assert lines[start + 1 : start + 4] == [
        "entropy:1.9688 nats (order-2 Markov source, 16 tokens, seed 1) + margin:0.0500 nats = target:2.0188 nats",
        "Compiling model and warming up (nothing to compile on a CPU; 3 steps)",
        "Resetting Model",
    ]
    steps = [STEP.fullmatch(line) for line in lines[start + 4 : -1]]
    assert all(steps)
    kinds = [f"{match[1]} {'val' if match[3] else 'train'}" for match in steps if match]
    assert kinds == ["0 val", "1 train", "2 train", "2 val", "3 train", "4 train", "4 val", "5 train", "5 val"]
    times = [int(match[4]) for match in steps if match]
    assert times == sorted(times) and times[0] == 0
    assert re.fullmatch(r"peak memory allocated: \d+ MiB reserved: \d+ MiB", lines[-1])


def test_without_training_the_loss_stays_that_of_guessing(smoke_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines, _ = train(capsys, smoke_data, *SHORT, "--steps", "20", "--learning-rate", "0")
    assert code == 0
    assert val_losses(lines) == {20: f"{math.log(16):.4f}"}


def test_a_short_run_learns_to_look_back(smoke_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, lines, _ = train(capsys, smoke_data, *SHORT, "--steps", "100")
    assert float(val_losses(lines)[100]) < MarkovSource().entropy.given_one - 0.2


def test_runs_repeat_and_the_warmup_leaves_no_trace(smoke_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def losses(*options: str) -> dict[int, str]:
        return val_losses(train(capsys, smoke_data, *SHORT, "--steps", "30", *options)[1])

    first = losses()
    assert losses() == first
    assert losses("--warmup-steps", "0") == first
    assert losses("--seed", "1") != first


def test_a_loss_that_is_no_number_ends_the_run(smoke_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines, err = train(capsys, smoke_data, *SHORT, "--learning-rate", "1e30")
    assert code == 3
    [(step, loss)] = val_losses(lines).items()
    assert loss == "nan" and step < 10
    assert lines[-2].startswith(f"step:{step}/500 val_loss:nan train_time:")
    assert err == f"the loss is not a number after step {step}: lower --learning-rate\n"


def test_a_last_step_that_spoils_the_model_is_found_by_the_validation(
    smoke_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines, _ = train(capsys, smoke_data, *SHORT, "--steps", "2", "--learning-rate", "1e30")
    assert code == 3
    assert val_losses(lines) == {2: "nan"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--steps", "0"], "argument --steps: '0' is not a whole number from 1 up"),
        (["--steps", "many"], "argument --steps: 'many' is not a whole number from 1 up"),
        (["--learning-rate", "nan"], "argument --learning-rate: 'nan' is not a number from 0 to 1e+30"),
        (["--learning-rate", "1e31"], "argument --learning-rate: '1e31' is not a number from 0 to 1e+30"),
        (["--learning-rate", "-1"], "argument --learning-rate: '-1' is not a number from 0 to 1e+30"),
        (["--threads", "0"], "argument --threads: '0' is not a whole number from 1 up"),
        (["--val-tokens", "1000"], "--val-tokens 1000 is not a multiple of the 2048 tokens of a batch"),
        (["--gpus", "8"], "unrecognized arguments: --gpus 8"),
    ],
)
def test_bad_option_is_one_line(capsys: pytest.CaptureFixture[str], options: list[str], message: str) -> None:
    with pytest.raises(SystemExit) as end:
        main(options)
    assert end.value.code == 2
    assert capsys.readouterr().err == f"speedrun_trainer.train: {message} (--help lists the options)\n"


def test_processes_must_share_the_batch_evenly(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(SystemExit):
        main([])
    assert "--sequences 32 cannot be shared by 3 processes: take a multiple of 3" in capsys.readouterr().err


def test_help_explains_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    out = capsys.readouterr().out
    assert MAKE in out and "--learning-rate X" in out and "(default: 0.01)" in out


def test_unusable_data_are_one_line_before_the_model_is_made(
    small_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(data: Path, *options: str) -> str:
        code, lines, err = train(capsys, data, *SHORT, *options)
        assert code == 4
        assert lines[-1] == "=" * 100
        assert len(err.splitlines()) == 1
        return err

    nowhere = tmp_path / "nowhere"
    assert f"{nowhere}: no such folder; name one with --data, or make it ({MAKE} --data {nowhere})" in refused(nowhere)
    assert "training 500 steps of 2,048 tokens needs 1,024,001 tokens" in refused(small_data)
    assert "validation needs 8,193 tokens, but markov_val_000000.bin" in refused(small_data, "--steps", "2")
    (small_data / "markov_train_000002.bin").write_bytes(b"<html>")
    assert "markov_train_000002.bin: not a token shard" in refused(small_data)
