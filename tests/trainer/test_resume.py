"""A run that was stopped goes on exactly as if it had not been."""

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest
import torch

from conftest import Processes, wait_until
from speedrun_trainer.__main__ import main as data_main
from speedrun_trainer.train import main

ALONE = [sys.executable, "-m", "speedrun_trainer.train"]
TWO = ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1", "--nproc_per_node=2"]
SHORT = ["--val-tokens", "8192", "--val-every", "0"]
# A run whose checkpoints take until the file `go` is there; the file `rank-<number>` tells each rank's process.
SLOW_SAVE = """
import os, sys, time
from pathlib import Path
import torch
from speedrun_trainer.train import main
here, write = Path(sys.argv.pop(1)), torch.save
here.joinpath("rank-" + os.environ["RANK"]).write_text(str(os.getpid()))
def save(*arguments):
    here.joinpath("saving").touch()
    deadline = time.monotonic() + 60
    while not here.joinpath("go").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    write(*arguments)
torch.save = save
sys.exit(main())
"""


def losses(metrics: Path) -> dict[int, float]:
    """The loss of each step, unrounded."""
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


def final_line(out: str) -> str:
    return re.sub(r" train_time.*", "", next(line for line in reversed(out.splitlines()) if "val_loss" in line))


def test_resumed_run_repeats_bit_for_bit(smoke_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--data", str(smoke_data), *SHORT, "--steps", "20"]
    whole, first, second = (tmp_path / f"{name}.jsonl" for name in ("whole", "first", "second"))
    assert main([*options, "--metrics", str(whole)]) == 0
    expected = final_line(capsys.readouterr().out)
    kept = ["--checkpoint", str(tmp_path / "kept"), "--save-every", "12"]
    assert main([*options, *kept, "--metrics", str(first)]) == 0
    assert losses(first) == losses(whole), "saving changes nothing"
    capsys.readouterr()
    assert main([*options, *kept, "--metrics", str(second)]) == 0
    out = capsys.readouterr().out
    assert f"Resuming after step 12 from {tmp_path / 'kept'}\n" in out
    assert losses(second) == {step: loss for step, loss in losses(whole).items() if step > 12}
    assert '{"resuming_after": 12}' in second.read_text().splitlines()
    assert final_line(out) == expected


def test_sigterm_saves_where_that_was_asked_for(smoke_data: Path, tmp_path: Path, processes: Processes) -> None:
    options = ["--data", str(smoke_data), *SHORT, "--steps", "80"]
    kept = ["--checkpoint", str(tmp_path / "kept"), "--metrics", str(tmp_path / "metrics.jsonl")]
    process, out, err = processes.start([*ALONE, *options, *kept])
    wait_until(lambda: "\nstep:5/80 " in out.read_text(), "the fifth step")
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 143
    said = re.search(r"terminated by SIGTERM: saved after step (\d+) in .*; the same command goes on", err.read_text())
    assert said and "val_loss" not in out.read_text()
    code, rest, _ = processes.run([*ALONE, *options, *kept])
    assert code == 0
    assert f"Resuming after step {said[1]} " in rest
    assert "step:80/80 val_loss:" in rest
    assert list(losses(tmp_path / "metrics.jsonl")) == list(range(1, 81)), "no step twice, none left out"


def test_sigterm_again_leaves_a_slow_save_alone(smoke_data: Path, tmp_path: Path, processes: Processes) -> None:
    """Slurm signals launcher and ranks, and then the launcher signals its ranks."""
    (tmp_path / "slow.py").write_text(SLOW_SAVE)
    options = ["--data", str(smoke_data), *SHORT, "--warmup-steps", "0", "--checkpoint", str(tmp_path / "kept")]
    process, out, err = processes.start([sys.executable, *TWO, str(tmp_path / "slow.py"), str(tmp_path), *options])
    wait_until(lambda: "\nstep:1/500 " in out.read_text(), "the first step")
    process.send_signal(signal.SIGTERM)
    wait_until((tmp_path / "saving").exists, "the save")
    for rank in range(2):
        os.kill(int((tmp_path / f"rank-{rank}").read_text()), signal.SIGTERM)
    (tmp_path / "go").touch()
    assert process.wait(timeout=60) != 0
    assert "terminated by SIGTERM: saved after step " in err.read_text(), err.read_text()
    assert (tmp_path / "kept" / "state.pt").exists()


@pytest.mark.full
def test_two_processes_go_on_where_one_stopped(smoke_data: Path, tmp_path: Path, processes: Processes) -> None:
    options = ["--data", str(smoke_data), *SHORT, "--steps", "12"]
    kept = ["--checkpoint", str(tmp_path / "kept"), "--save-every", "8"]
    code, out, err = processes.run([*ALONE, *options, *kept])
    assert code == 0, err
    code, rest, err = processes.run([sys.executable, *TWO, "-m", "speedrun_trainer.train", *options, *kept])
    assert code == 0, err
    assert "Resuming after step 8 " in rest and "step:8/12 train" not in rest
    values = [float(final_line(text).split("val_loss:")[1]) for text in (out, rest)]
    assert values[0] == pytest.approx(values[1], abs=3e-4)


def test_a_checkpoint_of_another_run_is_refused(
    smoke_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--data", str(smoke_data), *SHORT, "--steps", "4", "--checkpoint", str(tmp_path), "--save-every", "2"]
    assert main(options) == 0
    assert main([*options, "--seed", "1"]) == 6
    assert (
        "is of a run with seed 0, this one has 1: give the same options, or another folder" in capsys.readouterr().err
    )
    other = tmp_path / "other"
    assert data_main(["data", "make-synthetic", "--data", str(other), "--seed", "2"]) == 0
    assert main([*options, "--data", str(other)]) == 6
    assert "is of a run with data '" in capsys.readouterr().err, "as many tokens, but others"
    (tmp_path / "state.pt").write_bytes(b"half of something")
    assert main(options) == 6
    assert "state.pt: not a checkpoint of this trainer" in capsys.readouterr().err


def test_spoilt_weights_do_not_replace_a_good_checkpoint(
    smoke_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The loss is looked at before the update that spoils them."""
    (tmp_path / ".state.pt.1.tmp").touch()
    options = ["--data", str(smoke_data), *SHORT, "--warmup-steps", "0", "--checkpoint", str(tmp_path)]
    assert (
        main([*options, "--steps", "500", "--learning-rate", "1e30", "--without", "soft_cap", "--save-every", "1"]) == 3
    )
    assert "the loss is not a number after step " in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["state.pt"], "what a killed process left is cleaned"
    saved = torch.load(tmp_path / "state.pt", weights_only=True)["parameters"]
    assert all(bool(tensor.isfinite().all()) for tensor in saved.values())


@pytest.mark.parametrize("change", ["a tensor less", "another shape"])
def test_a_checkpoint_of_other_code_is_told(
    smoke_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: str
) -> None:
    options = ["--data", str(smoke_data), *SHORT, "--steps", "2", "--warmup-steps", "0", "--checkpoint", str(tmp_path)]
    assert main([*options, "--save-every", "1"]) == 0
    content = torch.load(tmp_path / "state.pt", weights_only=True)
    mixing = content["parameters"].pop("mixing")
    if change == "another shape":
        content["parameters"]["mixing"] = mixing.new_zeros(7, 7)
    torch.save(content, tmp_path / "state.pt")
    assert main(options) == 6
    assert "state.pt: is of another version of this trainer (" in capsys.readouterr().err
