"""A node that runs the scripts of jobs that prepare and of jobs that train: real bash and git, and a stand-in of srun.

The stand-in knows of containers only where an image is saved to, and runs each command on this machine.
"""

from __future__ import annotations

import os
import signal
import struct
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from speedrun_operator.api.names import Identity
from speedrun_operator.api.spec import Spec
from speedrun_operator.backends.slurm import prepare, script
from speedrun_operator.planning import RunPlan, Site, plan
from speedrun_operator.preparation.manifest import Manifest, read_manifest
from speedrun_operator.preparation.needs import Kind, Need, needs
from speedrun_operator.recipes.recipe import (
    BuildStep,
    Container,
    Data,
    Downloads,
    Files,
    Mentions,
    Stage,
    Step,
    shipped,
)
from speedrun_operator.source.resolved import Source

MINE = Identity("lab", "mine", "0f0e0d0c-1111-2222-3333-444455556666")
SRUN = """#!/bin/bash
for word in "$@"; do
  case $word in
  --container-save=*) save=${word#*=} ;;
  --container-image=*) image=${word#*=} ;;
  --container-workdir=*) cd "${word#*=}" || exit 1 ;;
  -*) ;;
  *) break ;;
  esac
  shift
done
echo "$image" >>"$HOME/steps"
"$@"
code=$?
[ -z "$save" ] || echo "image of $image, step ended with $code" >"$save"
exit "$code"
"""
CONTAINER = Container(
    base_image="docker://base",
    build=(BuildStep(kind="system", run="echo packages"), BuildStep(kind="python", run='cat "$SPEEDRUN_CODE/needs"')),
    inputs=("needs",),
    probe="true",
)
DATA = Data(
    dataset="some/shards",
    path="data/shards",
    fetch='bash "$SPEEDRUN_CODE/fetch.sh"',
    files=(Files(pattern="val_%06d.bin", first=0, count=1), Files(pattern="train_%06d.bin", first=1, count=3)),
    file_mib=1,
)
DOWNLOADS = Downloads(
    environment={"HF_HOME": "hub"},
    mentions=Mentions(pattern=r"get_kernel\\([^()]*\\)".replace("\\\\", "\\"), files=("train.py",)),
    fetch='cp "$SPEEDRUN_MENTIONS" "$HF_HOME/kernel"; head -c 100000 /dev/zero >"$HF_HOME/large"',
)
NAMES = ("val_000000.bin", "train_000001.bin", "train_000002.bin", "train_000003.bin")


def shard(tokens: int = 1000, *, magic: int = 20240520, version: int = 1, found: int | None = None) -> bytes:
    """A .bin file that claims `tokens` tokens and holds `found`."""
    count = tokens if found is None else found
    return struct.pack("<256i", magic, version, tokens, *[0] * 253) + b"\1\0" * count


@dataclass
class Node:
    """`upstream` is a git repository of code; `root` the shared directory."""

    home: Path

    def __post_init__(self) -> None:
        self.root = self.home / "runs"
        self.upstream = self.home / "upstream"
        self.store = self.home / "store"  # where the code's fetch.sh takes shards from
        bin_ = self.home / "bin"
        for folder in (self.root, self.upstream, self.store, bin_):
            folder.mkdir()
        (bin_ / "srun").write_text(SRUN)
        (bin_ / "srun").chmod(0o755)
        for name in NAMES:
            (self.store / name).write_bytes(shard())
        self.git("init", "-q")
        self.commit(needs="torch", **{"train.py": 'kernel = get_kernel("some/kernel", version=1)\n', "fetch.sh": FETCH})

    def git(self, *words: str) -> str:
        command = ["git", "-C", str(self.upstream), "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self, **files: str) -> str:
        """A commit of the upstream with these files; its name."""
        for name, text in files.items():
            (self.upstream / name).write_text(text)
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "more")
        self.head = self.git("rev-parse", "HEAD")
        return self.head

    def plan(self, *steps: str, mode: str = "Separate", **changes: Any) -> RunPlan:
        spec = Spec.model_validate({"recipe": {"name": "replay"}, "slurm": {"prepare": mode}})
        made = plan(spec, shipped(), Site())
        assert isinstance(made, RunPlan)
        only = Step(name="only", stage=Stage.TRAIN, run="\n".join(steps) or "true")
        made = replace(made, steps=(only,), source=Source(repository=str(self.upstream), commit=self.head), **changes)
        return made.for_runs([(0, "A")])

    def inputs(self, made: RunPlan) -> dict[str, str] | None:
        code = needs(made, None)[0]
        path = self.entry(code) / "manifest"
        return read_manifest(path.read_text()).inputs if path.exists() else None

    def need(self, made: RunPlan, kind: Kind) -> Need:
        return next(each for each in needs(made, self.inputs(made)) if each.kind is kind)

    def entry(self, need: Need) -> Path:
        return self.root / ".cache" / need.kind / need.key

    def manifest(self, need: Need) -> Manifest:
        return read_manifest((self.entry(need) / "manifest").read_text())

    def starts(self, made: RunPlan, kind: Kind, job: int = 17) -> subprocess.Popen[str]:
        """A job that makes the entry of a kind, in a session of its own."""
        need = self.need(made, kind)
        ledger = self.root / ".cache" / "jobs" / need.key / f"try-{job}"
        ledger.mkdir(parents=True)
        return self._start(prepare.render(made, need, str(self.root), "python3"), ledger, job)

    def makes(self, made: RunPlan, kind: Kind, job: int = 17) -> tuple[int, str]:
        """That job's exit code and log."""
        running = self.starts(made, kind, job)
        said, _ = running.communicate(timeout=60)
        return running.returncode, said

    def trains(self, made: RunPlan, job: int = 40, allocation: int = 0) -> tuple[int, str]:
        """A training job's exit code and log."""
        ledger = Path(MINE.ledger(str(self.root), allocation))
        ledger.mkdir(parents=True, exist_ok=True)
        with (ledger / "log").open("w") as log:
            running = self._start(script.render(made, MINE, allocation, str(self.root), "python3"), ledger, job, log)
        return running.wait(timeout=60), (ledger / "log").read_text()

    def run_directory(self, allocation: int = 0) -> Path:
        return Path(MINE.ledger(str(self.root), allocation)) / "run-0"

    def _start(self, text: str, ledger: Path, job: int, log: IO[str] | None = None) -> subprocess.Popen[str]:
        path = self.home / f"job-{job}.sh"
        path.write_text(text)
        environment = {
            "PATH": f"{self.home}/bin:/usr/bin:/bin",
            "HOME": str(self.home),
            "SLURM_JOB_ID": str(job),
            "SLURM_CPUS_ON_NODE": "2",
        }
        return subprocess.Popen(
            ["bash", path],
            cwd=ledger,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log or subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )


def kill(job: subprocess.Popen[str]) -> None:
    """As a node that dies: every process of the job at once."""
    children = subprocess.run(["ps", "-o", "pgid=", "--sid", str(job.pid)], capture_output=True, text=True, check=False)
    for group in {int(each) for each in children.stdout.split()}:
        os.killpg(group, signal.SIGKILL)
    job.communicate(timeout=20)


# Downloads as upstream does: by name, whole or not. `slow` in the store is where it stops and waits.
FETCH = """\
for name in val_000000 train_000001 train_000002 train_000003; do
  [ ! -e "$SPEEDRUN_DATA/$name.bin" ] || continue
  echo "$name" >>~/fetched
  if [ -e ~/store/slow ] && [ "$name" = train_000002 ]; then
    head -c 1500 ~/store/$name.bin >"$SPEEDRUN_DATA/$name.bin"
    touch ~/halfway
    sleep 60
  fi
  cp ~/store/$name.bin "$SPEEDRUN_DATA/$name.bin"
done
"""
