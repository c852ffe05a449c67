"""A compute node in a directory: batch scripts run as slurmstepd runs them, with what a submission leaves for them."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

from speedrun_operator.api.names import Identity
from speedrun_operator.backends.slurm.parcel import parcel
from speedrun_operator.backends.slurm.script import PACKAGE, render
from speedrun_operator.planning import RunPlan
from speedrun_operator.recipes.recipe import Stage, Step

MINE = Identity("lab", "mine", "0f0e0d0c-1111-2222-3333-444455556666")


def step(text: str, name: str = "only") -> Step:
    return Step(name=name, stage=Stage.TRAIN, run=text)


class Node:
    """A machine that runs batch scripts as slurmstepd does."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.environment: dict[str, str] = {}
        self.ledger = Path(MINE.ledger(str(home / "runs"), 0))

    def runs(self, made: RunPlan, *, job: str = "17", root: str = "~/runs") -> subprocess.CompletedProcess[str]:
        """A job's whole life: its exit code, and what its log holds."""
        running = self.start(made, job=job, root=root)
        said, _ = running.communicate(timeout=30)
        return subprocess.CompletedProcess(["bash"], running.returncode, said, "")

    def start(self, made: RunPlan, *, job: str = "17", root: str = "~/runs") -> subprocess.Popen[str]:
        """A job that runs: stdout is its log."""
        Path(MINE.ledger(root.replace("~", str(self.home), 1), 0)).mkdir(parents=True, exist_ok=True)
        script = self.home / f"job-{job}.sh"
        script.write_text(render(made, MINE, 0, root, "python3"))
        if sent := parcel(made):
            archive = Path(MINE.ledger(root.replace("~", str(self.home), 1), 0)) / PACKAGE
            archive.write_bytes(sent)
            archive.chmod(0o600)
        return subprocess.Popen(
            ["bash", script],
            cwd=self.home,
            env={"PATH": "/usr/bin:/bin", "HOME": str(self.home), "SLURM_JOB_ID": job, **self.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # A shell that runs the tests in the background has them, and so bash, ignore it.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
