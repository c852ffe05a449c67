"""A job: what Slurm knows of it, and its script at work in the ledger (as `backends.slurm.script` renders it)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from unit.model.disk import Disk, Ledger
from unit.model.virtual import epoch, seconds

STEPS = 4
STEP_MS = 50
SIGNALS = {"TERM": 143, "INT": 130, "USR1": 140}
ENDED = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED"})


@dataclass(frozen=True)
class Fate:
    """What becomes of a job: how long it waits, what its runs come to one after another, and how long each takes.

    A run's `3.27` is its loss; `crash` ends it with exit code 3, `silent` with 0 and no result, `hang` never.
    `trouble` happens to the job `after` so many seconds at work: cancel, preempt, node (fails), requeue.
    """

    waits: float = 2
    runs: tuple[str, ...] = ("3.27",)
    takes: float = 40
    trouble: str | None = None
    after: float = 20
    held: bool = False


@dataclass(eq=False)
class Job:
    """One job. `word`: its state as squeue says it; `lost`: Slurm forgot it. `limit`: it got the signal ahead of it."""

    id: int
    name: str
    comment: str
    path: str
    runs: tuple[int, ...]
    minutes: int
    warned: bool
    fate: Fate
    word: str = "PENDING"
    reason: str = "Priority"
    submitted: int = 0
    asked: float = 0.0
    started: int | None = None
    ended: float | None = None
    node: str = ""
    lost: bool = False
    limit: bool = False
    owns: bool = False
    starts: int = 0
    current: int = 0
    life: asyncio.Task[None] | None = field(default=None, repr=False)
    process: asyncio.Task[int] | None = field(default=None, repr=False)

    @property
    def over(self) -> bool:
        return self.word in ENDED or self.lost

    @property
    def code(self) -> int | None:
        """What its script ended with by itself."""
        done = self.owns and self.process is not None and self.process.done() and not self.process.cancelled()
        return self.process.result() if done and self.process is not None else None

    @property
    def works(self) -> bool:
        """Whether its runs are at work on a node."""
        return self.owns and self.process is not None and not self.process.done()


def mark(ledger: Ledger, text: str) -> None:
    ledger.write(f"\nSPEEDRUN {text} time={epoch()}.000\n")


def leave(job: Job, disk: Disk, code: int, signal: str = "") -> None:
    """The script's last lines."""
    ledger = disk[job.path]
    mark(ledger, f"job end exit={code}")
    if not disk.full:
        ledger.exit = f"job={job.id} exit={code} time={epoch()}" + (f" signal={signal}" if signal else "")


async def script(job: Job, disk: Disk, results: dict[tuple[str, int], set[tuple[str, int]]]) -> int:
    """The script's life; its exit code. `results` gets what the runs' last steps say, by job name and run."""
    ledger = disk[job.path]
    if disk.full and not ledger.owner:
        return 74
    if ledger.own(str(job.id)) != str(job.id):
        ledger.write(f"speedrun: job {job.id} ends at once\n")
        return 0
    job.owns = True
    ledger.exit = ""
    mark(ledger, f"attempt job={job.id} node={job.node}")
    failed = 0
    for position, run in enumerate(job.runs):
        fate = job.fate.runs[position % len(job.fate.runs)]
        job.current = run
        mark(ledger, f"run={run} begin")
        mark(ledger, f"run={run} stage=train begin")
        ledger.write("Compiling model\n")
        await asyncio.sleep(job.fate.takes / 4)
        ledger.write("Resetting Model\n")
        code = await _train(job, ledger, run, fate, results)
        mark(ledger, f"run={run} stage=train end exit={code}")
        mark(ledger, f"run={run} end exit={code}")
        failed = code or failed
    leave(job, disk, failed)
    return failed


async def _train(
    job: Job, ledger: Ledger, run: int, fate: str, results: dict[tuple[str, int], set[tuple[str, int]]]
) -> int:
    for step in range(1, STEPS + 1):
        await asyncio.sleep(job.fate.takes / 8)
        if step == 3 and fate == "crash":
            ledger.write("Traceback (most recent call last):\n")
            return 3
        if step == 3 and fate == "hang":
            await asyncio.sleep(10**6)
        ledger.write(f"step:{step}/{STEPS} train_time:{STEP_MS * step}ms step_avg:50.00ms\n")
        if step == 2:
            ledger.write(f"step:2/{STEPS} val_loss:3.1 train_time:{STEP_MS * step}ms step_avg:50.00ms\n")
    if fate == "silent":
        return 0
    spent = STEP_MS * STEPS + job.id % 7
    results.setdefault((job.name, run), set()).add((fate, spent))
    ledger.write(f"step:{STEPS}/{STEPS} val_loss:{fate} train_time:{spent}ms step_avg:50.00ms\n")
    return 0


def killed(job: Job, disk: Disk, signal: str) -> None:
    """What the script does on a signal, if it had come as far as its traps."""
    if job.process is None or job.process.done():
        return
    job.process.cancel()
    if not job.owns:
        return
    if signal == "USR1":
        mark(disk[job.path], "job limit")
    mark(disk[job.path], f"run={job.current} stage=train end exit=143")
    leave(job, disk, SIGNALS[signal], signal)


def age(job: Job) -> float:
    """Seconds since its end."""
    return seconds() - job.ended if job.ended is not None else 0.0
