"""A backend without a cluster: allocations in this process' memory, which move only when told. Nothing waits.

For tests of what stands on the protocol, and for trying things out. `Cluster` is the place, which outlives its
backends as a real one outlives the operator; `MemoryBackend` is one operator's view of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from speedrun_operator.api.phases import Reason
from speedrun_operator.backends.base import AllocationRef, MarkedJob, PrepareJob, PrepareRef, Snapshot
from speedrun_operator.backends.reading import Reading
from speedrun_operator.facts import ClusterFacts
from speedrun_operator.lifecycle.observation import (
    Accepted,
    Busy,
    JobState,
    Observed,
    Outcome,
    PrepareOutcome,
    Ready,
    Rejected,
    Unknown,
)
from speedrun_operator.lifecycle.situation import Ask
from speedrun_operator.planning import RunPlan
from speedrun_operator.preparation.manifest import Manifest


@dataclass
class Job:
    """One job there. `log` is all that it has written; `steps` is what it will do, a step each time it is told."""

    job_id: str
    seen: Observed
    steps: Iterator[Step]
    log: bytes = b""

    def start(self, node: str = "node-0") -> None:
        self.seen = replace(self.seen, state=JobState.RUNNING, started=self.seen.asked, node=node, reason=None)

    def write(self, data: bytes) -> None:
        self.log += data

    def end(self, reason: Reason = Reason.COMPLETED) -> None:
        if self.seen.state is not JobState.ENDED:
            self.seen = replace(self.seen, state=JobState.ENDED, ended=self.seen.asked, reason=reason.value)


Step = Callable[[Job], None]
Script = Callable[[RunPlan], Iterable[Step]]


def at_once(plan: RunPlan) -> Iterable[Step]:
    """A job that starts and ends without a word."""
    return (Job.start, Job.end)


@dataclass
class Cluster:
    """Jobs by allocation name, a clock, and the faults that are asked for.

    `script` says what each new job will do. `partitions` None takes every partition. `silent`: what every call gets
    for an answer. `lost_answers`: of so many further submissions the answer is lost. `asked`: how often for `facts`.
    """

    script: Script = at_once
    partitions: frozenset[str] | None = None
    silent: Unknown | None = None
    lost_answers: int = 0
    now: datetime = field(default_factory=lambda: datetime(2026, 1, 1, tzinfo=UTC))
    jobs: dict[str, Job] = field(default_factory=dict)
    marks: dict[str, MarkedJob] = field(default_factory=dict)
    fences: set[str] = field(default_factory=set)
    submissions: int = 0
    facts: ClusterFacts = field(default_factory=ClusterFacts)
    asked: int = 0

    def advance(self, seconds: float = 1) -> None:
        """Let time pass, and every job take its next step."""
        self.now += timedelta(seconds=seconds)
        for job in self.jobs.values():
            job.seen = replace(job.seen, asked=self.now)
            if job.seen.state is not JobState.ENDED and (step := next(job.steps, None)):
                step(job)

    def submit(self, name: str, plan: RunPlan) -> Outcome:
        if name not in self.jobs:
            if name in self.fences:
                return Rejected(Reason.CANCELLED.value, "it was cancelled before it was submitted")
            if self.partitions is not None and plan.partition not in self.partitions:
                return Rejected(Reason.SUBMISSION_REJECTED.value, f"there is no partition {plan.partition!r}")
            self.submissions += 1
            job_id = str(self.submissions)
            queued = Observed(JobState.QUEUED, self.now, job_id=job_id, submitted=self.now, reason="Priority")
            self.jobs[name] = Job(job_id, queued, iter(self.script(plan)))
        job = self.jobs[name]
        if self.lost_answers:
            self.lost_answers -= 1
            return Unknown("ConnectionLost", "the connection ended before the answer did", reachable=False)
        return Accepted(job.job_id, job.seen.submitted)


class MemoryBackend:
    """Implements `backends.base.Backend`. A poll reads at most `log_bytes` of each log."""

    def __init__(self, cluster: Cluster, *, log_bytes: int = 64 * 1024) -> None:
        self.cluster = cluster
        self._log_bytes = log_bytes
        self._read: dict[str, Reading] = {}
        self._caught_up: set[str] = set()
        self._unseen: dict[str, datetime] = {}

    def name_of(self, ref: AllocationRef) -> str:
        return ref.identity.job_name("memory00", ref.allocation)

    def log_path(self, ref: AllocationRef) -> str:
        return ref.identity.ledger("memory:", ref.allocation)

    async def submit(self, ref: AllocationRef, plan: RunPlan) -> Outcome:
        if self.cluster.silent:
            return Busy(self.cluster.silent.reason, self.cluster.silent.message, self.cluster.silent.reachable)
        name = self.name_of(ref)
        outcome = self.cluster.submit(name, plan)
        if job := self.cluster.jobs.get(name):
            mark = MarkedJob(name, job.job_id, ref.identity.uid, ref.identity.namespace)
            self.cluster.marks.setdefault(name, mark)
        return outcome

    async def prepare(self, ask: Ask, plan: RunPlan) -> PrepareOutcome:
        """Everything is ready here."""
        if self.cluster.silent:
            return Busy(self.cluster.silent.reason, self.cluster.silent.message, self.cluster.silent.reachable)
        return Ready(Manifest())

    async def observe(self, refs: Sequence[AllocationRef], preparing: Sequence[PrepareRef] = ()) -> Snapshot:
        if self.cluster.silent:
            self._unseen.clear()
            return Snapshot(error=self.cluster.silent)
        observed = {self.name_of(ref): self._observe(ref) for ref in refs}
        jobs = {name: job for name in observed if (job := self.cluster.jobs.get(name))}
        behind = any(self._read[name].offset < len(job.log) for name, job in jobs.items())
        return Snapshot(observed, behind=behind)

    def _observe(self, ref: AllocationRef) -> Observed:
        name, now = self.name_of(ref), self.cluster.now
        job = self.cluster.jobs.get(name)
        if job is None:
            unseen_for = now - self._unseen.setdefault(name, now)
            return Observed(JobState.UNSEEN, now, unseen_for=unseen_for, fenced=name in self.cluster.fences)
        self._unseen.pop(name, None)
        reading = self._read.get(name) or Reading(ref.log_format)
        reading = reading.after(job.log[reading.offset : reading.offset + self._log_bytes])
        self._read[name] = reading
        whole = reading.offset == len(job.log)
        if whole:
            self._caught_up.add(name)
        log = reading.progress if name in self._caught_up else None
        return replace(job.seen, asked=now, log=log, log_complete=whole and job.seen.state is JobState.ENDED)

    async def changed(self, seconds: float) -> frozenset[str] | None:
        await asyncio.sleep(seconds)
        return None

    async def cancel(self, refs: Sequence[AllocationRef]) -> Mapping[str, bool] | Unknown:
        if self.cluster.silent:
            return self.cluster.silent
        names = [self.name_of(ref) for ref in refs]
        for name in names:
            if job := self.cluster.jobs.get(name):
                job.end(Reason.CANCELLED)
            else:
                self.cluster.fences.add(name)
        return dict.fromkeys(names, True)

    async def jobs(self) -> Sequence[MarkedJob] | Unknown:
        if self.cluster.silent:
            return self.cluster.silent
        jobs = self.cluster.jobs
        return [mark for name, mark in self.cluster.marks.items() if jobs[name].seen.state is not JobState.ENDED]

    async def cancel_jobs(self, jobs: Sequence[MarkedJob | PrepareJob]) -> Unknown | None:
        if self.cluster.silent:
            return self.cluster.silent
        for each in jobs:
            self.cluster.jobs[each.name].end(Reason.CANCELLED)
        return None

    async def facts(self) -> ClusterFacts | Unknown:
        self.cluster.asked += 1
        return self.cluster.silent or self.cluster.facts

    def forget(self, name: str) -> None:
        self._read.pop(name, None)
        self._caught_up.discard(name)
        self._unseen.pop(name, None)

    async def close(self) -> None:
        """There is nothing to let go of."""
