"""The run as its user sees it: lines, losses and exit codes."""

import json
import math
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from speedrun_trainer import memory
from speedrun_trainer.__main__ import main as data_main
from speedrun_trainer.presets import IDEAS, PRESETS
from speedrun_trainer.shards import MAKE
from speedrun_trainer.source import MarkovSource
from speedrun_trainer.train import main

STEP = re.compile(r"step:(\d+)/(\d+) (?:val_loss:(\S+) )?train_time:(\d+)ms step_avg:(\d+\.\d\d)ms")
SHORT = ["--val-tokens", "8192", "--val-every", "0"]
DIVERGE = ["--learning-rate", "1e30", "--without", "soft_cap"]  # a capped loss stays finite, whatever the weights are


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
    assert lines[start + 1 : start + 7] == [
        "entropy:1.9605 nats (order-2 Markov source, 16 tokens, seed 1) + margin:0.0500 nats = target:2.0105 nats",
        "Model smoke: 101,386 parameters, 5 steps, 5,120 tokens, seed 0",
        "Data: 5,120 tokens from 7,426 of 1 shards up to markov_train_000001.bin, 31.1 % dropped",
        "Attention by sdpa (on a CPU)",
        "Compiling model and warming up (nothing to compile on a CPU; 3 steps of each of 1 stages)",
        "Resetting Model",
    ]
    steps = [STEP.fullmatch(line) for line in lines[start + 7 : -1]]
    assert all(steps)
    kinds = [f"{match[1]} {'val' if match[3] else 'train'}" for match in steps if match]
    assert kinds == ["0 val", "1 train", "2 train", "2 val", "3 train", "4 train", "4 val", "5 train", "5 val"]
    times = [int(match[4]) for match in steps if match]
    assert times == sorted(times) and times[0] < 1000, "finding the documents counts, compiling does not"
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
    code, lines, err = train(capsys, smoke_data, *SHORT, *DIVERGE)
    assert code == 3
    [(step, loss)] = val_losses(lines).items()
    assert loss == "nan" and step < 10
    assert lines[-2].startswith(f"step:{step}/500 val_loss:nan train_time:")
    assert err == f"the loss is not a number after step {step}: lower --learning-rate\n"


def test_a_last_step_that_spoils_the_model_is_found_by_the_validation(
    smoke_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines, _ = train(capsys, smoke_data, *SHORT, *DIVERGE, "--steps", "3")
    assert code == 3
    assert val_losses(lines) == {3: "nan"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--steps", "0"], "argument --steps: '0' is not a whole number from 1 up"),
        (["--seed", "9" * 20], f"argument --seed: '{'9' * 20}' is more than 9223372036854775807"),
        (["--steps", "many"], "argument --steps: 'many' is not a whole number from 1 up"),
        (["--learning-rate", "nan"], "argument --learning-rate: 'nan' is not a number from 0 to 1e+30"),
        (["--learning-rate", "1e31"], "argument --learning-rate: '1e31' is not a number from 0 to 1e+30"),
        (["--learning-rate", "-1"], "argument --learning-rate: '-1' is not a number from 0 to 1e+30"),
        (["--threads", "0"], "argument --threads: '0' is not a whole number from 1 up"),
        (["--val-tokens", "1000"], "--val-tokens 1000 is not a multiple of 2048"),
        (["--micro-tokens", "255"], "--micro-tokens 255: the smallest portion is a unit of 256 tokens"),
        (["--save-every", "10"], "--save-every needs --checkpoint FOLDER"),
        (["--stop-at-target", "-1"], "argument --stop-at-target: '-1' is not a number from 0 to 1000000000.0"),
        (["--fp8", "mlp"], "argument --fp8: invalid choice: 'mlp' (choose from 'none', 'head')"),
        (["--gpus", "8"], "unrecognized arguments: --gpus 8"),
    ],
)
def test_bad_option_is_one_line(capsys: pytest.CaptureFixture[str], options: list[str], message: str) -> None:
    with pytest.raises(SystemExit) as end:
        main(options)
    assert end.value.code == 2
    assert capsys.readouterr().err == f"speedrun_trainer.train: {message} (--help lists the options)\n"


@pytest.mark.parametrize("processes", [3, 5, 16])
def test_processes_that_cannot_share_a_step_are_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    monkeypatch.setenv("WORLD_SIZE", str(processes))
    assert main([]) == 5
    assert f"{processes} processes cannot share a step's 8 units: start 1, 2, 4 or 8" in capsys.readouterr().err


def test_a_gpu_that_is_not_there_is_told(
    smoke_data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    code, _, err = train(capsys, smoke_data, "--device", "cuda")
    assert code == 5 and "--device cuda: torch sees no GPU; look at nvidia-smi" in err
    code, _, err = train(capsys, smoke_data, "--attention", "varlen", "--device", "cpu")
    assert code == 5 and "--attention varlen needs a GPU; on a CPU there is sdpa" in err


@pytest.mark.parametrize(("world", "advice"), [(4, "lower --micro-tokens, to 49152 at"), (8, "a unit of 49152")])
def test_advice_on_memory_is_of_use(world: int, advice: str) -> None:
    assert advice in memory.advice(replace(PRESETS["gpt2-small"], most_tokens=98_304), world)


def test_help_explains_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    out = " ".join(capsys.readouterr().out.split())
    assert MAKE in out and "--learning-rate X" in out and "(default: 0.01 for smoke, 0.008 for gpt2-small)" in out
    for preset in PRESETS.values():
        assert preset.about in out


def test_run_r_of_a_series_has_the_seed_after(smoke_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def loss(*options: str) -> str:
        return val_losses(train(capsys, smoke_data, *SHORT, "--steps", "5", *options)[1])[5]

    assert loss("--seed", "2", "--run-number", "3") == loss("--seed", "5") != loss("--seed", "2")


def test_the_run_ends_at_the_first_validation_that_reaches_the_target(
    smoke_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--steps", "60", "--val-tokens", "8192", "--val-every", "10"]
    whole = {step: float(loss) for step, loss in val_losses(train(capsys, smoke_data, *options)[1]).items()}
    code, lines, _ = train(capsys, smoke_data, *options, "--stop-at-target", str(whole[30] + 0.0001))
    assert code == 0
    assert list(val_losses(lines)) == [0, 10, 20, 30]


def test_metrics_say_what_each_step_did(smoke_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "deep" / "metrics.jsonl"
    _, lines, _ = train(capsys, smoke_data, *SHORT, "--steps", "4", "--metrics", str(path))
    written = [json.loads(line) for line in path.read_text().splitlines()]
    steps = [line for line in written if "loss" in line]
    assert [line["step"] for line in steps] == [1, 2, 3, 4]
    assert [line["tokens"] for line in steps] == [1024, 2048, 3072, 4096]
    assert steps[0]["loss"] == pytest.approx(math.log(16), abs=1e-5)
    assert steps[0]["rate"] == pytest.approx(0.001)
    assert f"{written[-1]['val_loss']:.4f}" == val_losses(lines)[4]


def test_metrics_of_a_diverged_run_are_still_json(
    smoke_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "metrics.jsonl"
    assert train(capsys, smoke_data, *SHORT, *DIVERGE, "--metrics", str(path))[0] == 3
    last = json.loads(path.read_text().splitlines()[-1], parse_constant=lambda name: pytest.fail(name))
    assert last["val_loss"] is None


def test_weights_are_written_as_safetensors(
    smoke_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from safetensors import safe_open

    path = tmp_path / "weights.safetensors"
    train(capsys, smoke_data, *SHORT, "--steps", "3", "--weights", str(path))
    with safe_open(path, "pt") as file:
        assert file.metadata() == {"preset": "smoke", "step": "3"}
        shapes = {name: tuple(file.get_tensor(name).shape) for name in file.keys()}  # noqa: SIM118
    assert shapes["embedding"] == (16, 64) and shapes["attention_bank"] == (8, 64, 64)
    assert [child.name for child in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(("option", "name"), [("--metrics", "m.jsonl"), ("--weights", "w"), ("--checkpoint", "c")])
def test_an_output_that_cannot_be_written_is_told_before_training(
    smoke_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, name: str
) -> None:
    (tmp_path / "file").touch()
    code, lines, err = train(capsys, smoke_data, *SHORT, option, str(tmp_path / "file" / name))
    assert code == 6 and str(tmp_path / "file") in err
    assert "Resetting Model" not in lines


def test_weights_that_could_not_be_written_are_told_before_training(
    smoke_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, lines, err = train(capsys, smoke_data, *SHORT, "--weights", str(tmp_path))
    assert (code, err) == (
        6,
        f"speedrun_trainer.train: {tmp_path}: is a folder; --weights names the file that is written\n",
    )
    assert "Resetting Model" not in lines
    monkeypatch.setitem(sys.modules, "safetensors", None)
    code, lines, err = train(capsys, smoke_data, *SHORT, "--weights", str(tmp_path / "w"))
    assert code == 6 and "--weights needs the package safetensors: pip install" in err
    assert "Resetting Model" not in lines


@pytest.mark.parametrize("idea", IDEAS)
def test_each_idea_can_be_left_out(smoke_data: Path, capsys: pytest.CaptureFixture[str], idea: str) -> None:
    code, lines, err = train(capsys, smoke_data, *SHORT, "--steps", "3", "--without", idea)
    assert (code, err) == (0, "")
    assert float(val_losses(lines)[3]) < 4


def test_all_ideas_can_be_left_out_together(smoke_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Then there are parameters that nothing uses: the weights that mix streams."""
    without = [word for idea in IDEAS for word in ("--without", idea)]
    code, lines, err = train(capsys, smoke_data, *SHORT, "--steps", "3", "--warmup-steps", "1", *without)
    assert (code, err) == (0, "")
    assert float(val_losses(lines)[3]) < 4


def test_an_fp8_head_is_said_and_trains_like_the_other(smoke_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = float(val_losses(train(capsys, smoke_data, *SHORT, "--steps", "20")[1])[20])
    code, lines, err = train(capsys, smoke_data, *SHORT, "--steps", "20", "--fp8", "head")
    assert (code, err) == (0, "")
    attention = lines.index("Attention by sdpa (on a CPU)")
    assert lines[attention + 1] == (
        "FP8 head by emulation on a CPU (e4m3: activations x 2^5, weights x 2^6; e5m2: gradients x 2^25; "
        "validation in float32)"
    )
    assert 0 < abs(float(val_losses(lines)[20]) - plain) < 0.02


def test_a_vocabulary_that_fp8_cannot_take_is_told_before_the_warmup(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(40):
        (tmp_path / f"{number}.txt").write_text(f"{number} " * 2000)
    assert data_main(["data", "make", str(tmp_path), "--data", str(tmp_path / "own"), "--val-share", "0.5"]) == 0
    options = ["--steps", "1", "--val-tokens", "2048"]
    code, lines, err = train(capsys, tmp_path / "own", *options, "--fp8", "head")
    assert code == 5 and not any(line.startswith("Compiling") for line in lines), err
    assert err == (
        "speedrun_trainer.train: --fp8 head: its products take multiples of 16, and there are 257 rows of the "
        "vocabulary; leave it out\n"
    )


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
    assert "training 500 steps needs 512,001 tokens, but they hold 10,000" in refused(small_data)
    assert "markov_val_000000.bin: validation needs 8,193 tokens, but" in refused(small_data, "--steps", "2")
    (small_data / "markov_train_000002.bin").write_bytes(b"<html>")
    assert "markov_train_000002.bin: not a token shard" in refused(small_data)
