"""The run as processes: alone and under torchrun, stopped, failing, and the whole smoke run."""

import re
import shlex
import shutil
import signal
import sys
from pathlib import Path

import pytest
import yaml

from conftest import REPOSITORY, Processes, wait_until
from speedrun_trainer.shards import open_shard, shard_bytes

ALONE = [sys.executable, "-m", "speedrun_trainer.train"]
SHORT = ["--val-tokens", "8192", "--val-every", "0"]
TARGET = 2.0105


def torchrun(processes: int) -> list[str]:
    alone_here = ["--standalone", "--local-addr=127.0.0.1", f"--nproc_per_node={processes}"]
    return [sys.executable, "-m", "torch.distributed.run", *alone_here, "-m", "speedrun_trainer.train"]


def val_loss(out: str, step: int) -> float:
    found = re.findall(rf"^step:{step}/\d+ val_loss:(\S+) ", out, flags=re.MULTILINE)
    assert len(found) == 1, out
    return float(found[0])


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.full)])
def test_processes_train_as_one(smoke_data: Path, processes: Processes, world: int) -> None:
    """Also where not every parameter can be shared out evenly: the smoke model has banks of 4 and tables of 16."""
    options = ["--data", str(smoke_data), *SHORT, "--steps", "10", "--run-number", "0"]
    code, out, err = processes.run([*torchrun(world), *options])
    assert code == 0, err
    assert f"Running on the CPU with world_size {world} and 1 threads a process\n" in out
    assert out.count("Resetting Model\n") == 1, "only rank 0 prints"
    _, alone, _ = processes.run([*ALONE, *options])
    assert val_loss(out, 10) == pytest.approx(val_loss(alone, 10), abs=3e-4)


@pytest.mark.parametrize(("command", "expected"), [(ALONE, {143}), (torchrun(2), {1, 143})], ids=["alone", "torchrun"])
def test_sigterm_ends_the_run_without_a_result(
    smoke_data: Path, processes: Processes, command: list[str], expected: set[int]
) -> None:
    process, out, err = processes.start([*command, "--data", str(smoke_data), "--val-every", "0"])
    wait_until(lambda: "\nstep:5/500 " in out.read_text(), "the fifth step")
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) in expected
    assert "terminated by SIGTERM: the run ends here, without a result\n" in err.read_text()
    assert "val_loss" not in out.read_text()


def test_torchrun_tells_the_exit_code_of_a_diverged_run(smoke_data: Path, processes: Processes) -> None:
    code, out, err = processes.run(
        [*torchrun(2), "--data", str(smoke_data), *SHORT, "--learning-rate", "1e30", "--without", "soft_cap"]
    )
    assert code == 1
    assert re.search(r"^step:\d+/500 val_loss:nan ", out, flags=re.MULTILINE)
    assert re.search(r"^the loss is not a number after step \d+: lower --learning-rate$", err, flags=re.MULTILINE)
    assert re.search(r"Root Cause.*exitcode  : 3 ", err, flags=re.DOTALL)


def test_every_rank_finds_a_fault_of_the_data(small_data: Path, processes: Processes) -> None:
    """BR-088: told before anything is compiled, and not by rank 0 alone."""
    path = small_data / "markov_train_000001.bin"
    tokens = open_shard(path).copy()
    tokens[2000] = 999
    path.write_bytes(shard_bytes(tokens))
    options = ["--data", str(small_data), "--val-tokens", "2048", "--steps", "4"]
    code, out, err = processes.run([*torchrun(2), *options])
    assert code == 1
    told = f"speedrun_trainer.train: {path}: holds token id 999, but the vocabulary has 16 ids\n"
    assert 1 <= err.count(told) <= 2, "torchrun ends the other rank as soon as one has ended"
    assert re.search(r"exitcode  : 4 ", err)
    assert "Compiling" not in out


def test_smoke_recipe_reaches_its_target(tmp_path: Path, processes: Processes) -> None:
    """Its steps as they stand, whole: result, target, and the memory of both processes."""
    recipe = yaml.safe_load((REPOSITORY / "operator/speedrun_operator/recipes/smoke.yaml").read_text())
    code = tmp_path / "code"
    shutil.copytree(REPOSITORY / "trainer", code, ignore=shutil.ignore_patterns("__pycache__"))
    given = {"SPEEDRUN_CODE": code, "SPEEDRUN_PYTHON": sys.executable, "SPEEDRUN_RUN": 0}
    given |= {f"PARAM_{name.upper()}": each["default"] for name, each in recipe["parameters"].items()}
    exports = "".join(f"export {name}={shlex.quote(str(value))}\n" for name, value in given.items())
    data, train = (["bash", "-euo", "pipefail", "-c", f"{exports}cd {code}\n{step['run']}"] for step in recipe["steps"])
    assert processes.run(data)[0] == 0
    process, out, err = processes.start(train)
    wait_until(lambda: "\nstep:5/500 " in out.read_text() or process.poll() is not None, "the fifth step")
    launcher = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
    assert process.wait(timeout=240) == 0, err.read_text()
    lines = out.read_text()
    assert f" = target:{TARGET} nats\n" in lines
    assert recipe["target"] == TARGET
    assert val_loss(lines, 0) > 2.7 > TARGET
    assert val_loss(lines, 500) <= TARGET
    trainer = re.search(r"^peak memory allocated: (\d+) MiB", lines, flags=re.MULTILINE)
    assert launcher and trainer
    assert int(launcher[1]) / 1024 + int(trainer[1]) < recipe["memoryMib"] == 1536
