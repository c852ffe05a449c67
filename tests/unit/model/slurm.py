"""Slurm as its manuals describe it: a controller that can be down, forget, and give numbers again; accounting that
lags, is down, or is off; jobs that wait, are held, preempted, requeued, cancelled, and reach their limits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from unit.model import job as jobs
from unit.model.disk import Disk
from unit.model.job import Fate, Job
from unit.model.output import SLURM_DOWN
from unit.model.virtual import epoch, seconds

CONTROLLER_DOWN = "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)"
TIMED_OUT = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
MUNGE = "error: Munge encode failed: Failed to access /run/munge/munge.socket.2"
ACCOUNTING_OFF = "Slurm accounting storage is disabled"
REQUEUED = 60.0  # before a requeued job may start again
GRACE = 1.0  # between a signal and the end


@dataclass
class Slurm:
    """`min_age`: seconds for which squeue shows what ended. `lag`: how far sacct is behind. `accounting`: on, down or
    off.

    `silent`: a site's wrapper turns the failures of squeue and sacct into empty answers, with the error beside them.
    `fates`: what becomes of the jobs to come, in turn. `ill`: how the next sbatch fails (busy, timed out, taken).
    """

    disk: Disk
    min_age: float = 300
    lag: float = 5
    accounting: str = "on"
    fates: list[Fate] = field(default_factory=list)
    ill: list[str] = field(default_factory=list)
    jobs: dict[int, Job] = field(default_factory=dict)
    ever: list[Job] = field(default_factory=list)
    results: dict[tuple[str, int], set[tuple[str, int]]] = field(default_factory=dict)
    on_submitted: Callable[[Job], None] = lambda job: None
    on_cancelled: Callable[[Job], None] = lambda job: None
    on_start: Callable[[Job], None] = lambda job: None
    silent: bool = False
    next_id: int = 17
    saved: tuple[int, dict[int, str]] = (17, {})
    held: asyncio.Event = field(default_factory=asyncio.Event)
    answers: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: list[tuple[int, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.answers.set()

    @property
    def up(self) -> bool:
        return self.answers.is_set()

    # --- programs -------------------------------------------------------------------------------------------------

    async def sbatch(self, arguments: Sequence[str], path: str, script: bytes) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        asked = seconds()  # its claim was made just now
        trouble = self.ill.pop(0) if self.ill else ""
        await asyncio.sleep({"slow": 140.0, "stopped": 400.0}.get(trouble, 0.1))
        if not self.up or trouble == "busy":
            return 1, "", CONTROLLER_DOWN
        if trouble == "refuses":
            return 1, "", "sbatch: error: Batch job submission failed: Invalid partition name specified"
        if trouble == "timed out":
            return 1, "", TIMED_OUT
        job = self._new(arguments, path, script, asked)
        if trouble == "taken":
            return 1, "", TIMED_OUT
        return 0, f"{job.id}\n", ""

    def _new(self, arguments: Sequence[str], path: str, script: bytes, asked: float) -> Job:
        said = dict(each.removeprefix("--").split("=", 1) for each in arguments if "=" in each)
        listed = next(line for line in script.decode().splitlines() if line.startswith("runs=("))
        job = Job(
            id=self.next_id,
            name=said["job-name"],
            comment=said["comment"],
            path=path,
            runs=tuple(int(each) for each in listed.removeprefix("runs=(").removesuffix(")").split()),
            minutes=int(said["time"]),
            warned="signal" in said,
            fate=self.fates.pop(0) if self.fates else Fate(),
            submitted=epoch(),
            asked=asked,
        )
        self.next_id += 1
        self.add(job)
        self.on_submitted(job)
        return job

    def add(self, job: Job) -> None:
        self.jobs[job.id] = job
        self.ever.append(job)
        job.life = asyncio.create_task(self._life(job))

    def squeue(self) -> list[Job] | None:
        """Every job that the controller knows; None: it does not answer, and `excuse` is what is said instead."""
        if not self.up or self.silent:
            return None
        self.jobs = {
            number: each for number, each in self.jobs.items() if not each.over or jobs.age(each) < self.min_age
        }
        return list(self.jobs.values())

    @property
    def excuse(self) -> str:
        return f"{MUNGE}\n" if self.silent else SLURM_DOWN

    def sacct(self, names: Iterable[str]) -> tuple[int, list[tuple[Job, str]], str]:
        """0 where it answers; rows, each with the state that accounting knows; what is said on stderr."""
        if self.silent:
            return 1, [], MUNGE
        if self.accounting == "off":
            return 1, [], ACCOUNTING_OFF
        if self.accounting == "down":
            return 1, [], "sacct: error: Problem talking to the database: Connection refused"
        wanted = set(names)
        late = seconds() - self.lag
        rows = [(each, self.accounted(each)) for each in self.ever if each.name in wanted]
        return 0, [row for row in rows if row[0].submitted - epoch() + seconds() <= late], ""

    def accounted(self, job: Job) -> str:
        """The state in accounting: of a job that the controller lost, what it was then, for ever."""
        if job.word in jobs.ENDED and jobs.age(job) >= self.lag:
            return job.word
        return "RUNNING" if job.started is not None else "PENDING"

    def scancel(self, numbers: Iterable[int], name: str | None = None) -> None:
        if not self.up:
            return
        for number in numbers:
            job = self.jobs.get(number)
            if job is not None and name in (None, job.name) and not job.over:
                self.cancelled.append((job.id, job.name))
                self.on_cancelled(job)
                self.end(job, "CANCELLED")

    # --- what happens to jobs -------------------------------------------------------------------------------------

    def end(self, job: Job, word: str, *, signal: str | None = "TERM") -> None:
        """End a live job; with a signal it has a moment, without one it is dead at once."""
        if job.over or job.word == "COMPLETING":
            return
        if job.life is not None:
            job.life.cancel()
        if job.word == "PENDING" or signal is None:
            if job.process is not None:
                job.process.cancel()
            self._over(job, word)
            return
        job.word = "COMPLETING"
        job.life = asyncio.create_task(self._dies(job, word, signal))

    async def _dies(self, job: Job, word: str, signal: str) -> None:
        await asyncio.sleep(GRACE)
        jobs.killed(job, self.disk, signal)
        await asyncio.sleep(GRACE)
        await self.answers.wait()
        if word == "REQUEUED":
            self._again(job)
        else:
            self._over(job, word)

    def _over(self, job: Job, word: str) -> None:
        job.word, job.ended = word, seconds()

    def _again(self, job: Job) -> None:
        job.word, job.reason, job.started, job.node, job.owns = "PENDING", "BeginTime", None, "", False
        job.fate = Fate(waits=REQUEUED, runs=job.fate.runs, takes=job.fate.takes)
        job.life = asyncio.create_task(self._life(job))

    async def _life(self, job: Job) -> None:
        await asyncio.sleep(job.fate.waits)
        if job.fate.held:
            job.reason = "JobHeldUser"
            await self.held.wait()
        await self.answers.wait()
        job.word, job.reason, job.started, job.node = "RUNNING", "None", epoch(), "node-a"
        job.starts += 1
        self.on_start(job)
        job.process = asyncio.create_task(jobs.script(job, self.disk, self.results))
        try:
            code = await asyncio.wait_for(asyncio.shield(job.process), self._allowed(job))
        except TimeoutError:
            self._interrupt(job)
            return
        job.word = "COMPLETING"
        await asyncio.sleep(0.5)
        await self.answers.wait()
        self._over(job, "COMPLETED" if code == 0 else "FAILED")

    def _allowed(self, job: Job) -> float:
        limit = job.minutes * 60.0 - (60 if job.warned else 0)
        return min(limit, job.fate.after) if job.fate.trouble else limit

    def _interrupt(self, job: Job) -> None:
        """Its trouble, or its time limit: a script that was warned of that ends by itself."""
        trouble, job.life = job.fate.trouble, None
        if trouble is None:
            job.limit = True
            self.end(job, "FAILED" if job.warned else "TIMEOUT", signal="USR1" if job.warned else "TERM")
        elif trouble == "node":
            self.end(job, "NODE_FAIL", signal=None)
        else:
            self.end(job, {"cancel": "CANCELLED", "preempt": "PREEMPTED", "requeue": "REQUEUED"}[trouble])

    # --- the controller -------------------------------------------------------------------------------------------

    def save(self) -> None:
        self.saved = (self.next_id, {number: each.word for number, each in self.jobs.items()})

    def stop(self) -> None:
        self.answers.clear()

    def start(self, *, forgets: bool) -> None:
        """The controller is back, perhaps with an older state: what it does not know, its nodes end."""
        self.answers.set()
        if not forgets:
            return
        self.next_id, known = self.saved
        for number, job in list(self.jobs.items()):
            if number in known:
                continue
            del self.jobs[number]
            if not job.over:
                job.lost, job.ended = True, seconds()
                for task in (job.life, job.process):
                    if task is not None:
                        task.cancel()
