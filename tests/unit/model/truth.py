"""What must hold, whatever happens: asked at each start of a job, each submission, and each status that is written."""

from __future__ import annotations

from dataclasses import dataclass, field

from speedrun_operator.api.names import JOB_PREFIX
from speedrun_operator.api.phases import AllocationState, Phase
from speedrun_operator.api.schema import custom_resource_definition
from speedrun_operator.api.status import Allocation, Status
from speedrun_operator.kube.client import Json
from unit.builders import CLUSTER
from unit.model.apiserver import ApiServer
from unit.model.job import Job, age
from unit.model.slurm import Slurm
from unit.model.submissions import CLAIM_SECONDS
from unit.model.virtual import seconds
from unit.structural import faults

STATUS = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
LOST_SECONDS = 290.0
SEEN_SECONDS = 90.0  # what was witnessed for longer than this, and was asked about, must be known
ACCOUNTING_SECONDS = 120.0
OWN_REASONS = frozenset({"Suspended", "DeadlineExceeded", "Stalled", "NeverRuns"})
OURS = f"{JOB_PREFIX}-{CLUSTER}-"

# What each reason of an end may be in Slurm's words, by any witness; JobFailed of a job that a signal ended is apart.
MEANS = {
    "Completed": {"COMPLETED"},
    "JobFailed": {"FAILED"},
    "Cancelled": {"CANCELLED"},
    "TimeLimit": {"TIMEOUT"},
    "NodeFailure": {"NODE_FAIL"},
    "Preempted": {"PREEMPTED"},
}


@dataclass
class Truth:
    """Knows Slurm from within. `broken`: what did not hold; the first of it is what matters."""

    slurm: Slurm
    api: ApiServer
    broken: list[str] = field(default_factory=list)
    ended: dict[str, str] = field(default_factory=dict)
    said: dict[str, Status] = field(default_factory=dict)
    exposed: set[str] = field(default_factory=set)

    def holds(self, what: object, words: str) -> None:
        if not what:
            self.broken.append(f"at {seconds():.0f} s: {words}")

    # --- jobs -----------------------------------------------------------------------------------------------------

    def submitted(self, job: Job) -> None:
        if not job.name.startswith(OURS):
            return
        self.holds(self._uid(job.name) in self.api.protected, f"{job.name} submitted, and nothing holds its resource")
        for each in self.slurm.ever:
            again = each.name == job.name and each is not job
            apart = abs(each.asked - job.asked)
            self.holds(not again or apart >= CLAIM_SECONDS - 1, f"{job.name} submitted twice, {apart:.0f} s apart")

    def started(self, job: Job) -> None:
        owner = self.slurm.disk[job.path].owner
        if owner not in ("", str(job.id)):
            return  # it ends at its first line
        uid = self._uid(job.name)
        for each in self.slurm.ever:
            if each is job:
                continue
            same = each.name.startswith(f"{OURS}{uid}-") and set(each.runs) & set(job.runs)
            self.holds(not (same and each.works), f"{job.name}: a run in two jobs at work, {each.id} and {job.id}")
            again = each.name == job.name and each.owns and not (each.lost and each.id == job.id)  # as if requeued
            self.holds(not again, f"{job.name} started twice, as {each.id} and {job.id}")
        self.holds(job.name not in self.ended, f"{job.name} starts, and was said to have ended")

    def restored(self, raw: Json) -> None:
        """Somebody put a status back: what was said after it counts no more, and the finalizer may be missing."""
        self.said[raw["metadata"]["uid"]] = Status.model_validate(raw["status"])
        self.exposed.add(raw["metadata"]["uid"])

    def gone(self, raw: Json) -> None:
        """An object is gone: so are its jobs, or it was said that they are not; unless somebody took the finalizer."""
        uid = raw["metadata"]["uid"]
        if uid in self.exposed or uid not in self.api.protected or (uid, "JobNotCancelled") in self.api.events:
            return
        alive = [each for each in self.slurm.ever if uid in each.name and each in self._alive(each.name)]
        self.holds(not alive, f"{raw['metadata']['name']} is gone, and has {alive}")

    def _uid(self, name: str) -> str:
        return name.removeprefix(OURS).rsplit("-", 1)[0]

    def cancelled(self, job: Job) -> None:
        """We end a job: of what is gone or goes, or where status says why."""
        uid = self._uid(job.name)
        raw = next((each for each in self.api.objects.values() if each["metadata"]["uid"] == uid), None)
        if raw is None or raw["metadata"].get("deletionTimestamp"):
            return
        found = Status.model_validate(raw.get("status") or {}).allocations
        said = any(each.name == job.name and each.ending is not None for each in found)
        self.holds(said, f"{job.name} is cancelled, and nothing says why")

    def _alive(self, name: str) -> list[Job]:
        """Jobs of that name that work, or may still come to own the allocation."""
        found = [each for each in self.slurm.ever if each.name == name and not each.over]
        return [each for each in found if each.code is None and self.slurm.disk[each.path].owner in ("", str(each.id))]

    # --- what is said ---------------------------------------------------------------------------------------------

    def status(self, raw: Json) -> None:
        said = list(faults(STATUS, raw["status"], "status"))
        self.holds(not said, f"the CRD refuses it: {said}")
        status = Status.model_validate(raw["status"])
        uid = raw["metadata"]["uid"]
        before = self.said.get(uid, Status())
        for allocation in status.allocations:
            if allocation.state is AllocationState.ENDED and allocation.name not in self.ended:
                self.ended[allocation.name] = allocation.reason or ""
                self._end(allocation)
        for was, run in zip(before.runs, status.runs, strict=False):
            self.holds(was == run or not was.phase.finished, f"run {run.index} was {was.phase}, and is {run.phase}")
        self._results(status)
        self.said[uid] = status

    def _end(self, allocation: Allocation) -> None:
        name, reason = allocation.name, allocation.reason or ""
        alive = self._alive(name)
        self.holds(not alive, f"{name} ended ({reason}), and {[(each.id, each.word) for each in alive]}")
        jobs = [each for each in self.slurm.ever if each.name == name]
        owner = [each for each in jobs if each.owns] or jobs
        if reason == "JobLost":
            known = [each.id for each in owner if self._witnessed(each)]
            self.holds(not known, f"{name} is lost, and a witness knows {known}")
            early = [f"{each.id} {age(each):.0f} s ago" for each in owner if age(each) < LOST_SECONDS]
            self.holds(not early, f"{name} is said to be lost, and ended {early}")
        elif reason in MEANS and jobs:
            words = {word for each in owner for word in self._words(each)}
            if reason == "Cancelled" and self._only_marker(owner):
                words |= (
                    {"CANCELLED"} if words & {"PREEMPTED", "TIMEOUT"} or any(each.lost for each in owner) else set()
                )
            self.holds(words & MEANS[reason], f"{name} ended as {reason}, and was {words}")
        else:
            told = reason in OWN_REASONS | {"SubmissionRejected", "Cancelled"}
            self.holds(told, f"{name} ended for {reason}")
        self.holds(reason != "SubmissionRejected" or not jobs, f"{name} was rejected, and is {jobs}")

    def _words(self, job: Job) -> set[str]:
        """What it came to: by Slurm's word, and by its script's, where that came to its own end."""
        by_itself = set() if job.code is None else {"FAILED" if job.code else "COMPLETED"}
        return {"TIMEOUT" if job.limit else job.word} | by_itself

    def _only_marker(self, jobs: list[Job]) -> bool:
        """Whether accounting had no chance to tell: it is off, or was down, or late."""
        return self.slurm.accounting != "on" or self.slurm.lag >= ACCOUNTING_SECONDS or any(each.lost for each in jobs)

    def _witnessed(self, job: Job) -> bool:
        if job.lost or job.ended is None:
            return False
        if self.slurm.min_age > SEEN_SECONDS and age(job) > SEEN_SECONDS and age(job) < self.slurm.min_age:
            return True
        ledger = self.slurm.disk[job.path]
        if ledger.exit.startswith(f"job={job.id} ") and age(job) > SEEN_SECONDS:
            return True
        return self.slurm.accounting == "on" and age(job) - self.slurm.lag > SEEN_SECONDS and job in self.slurm.ever

    def _results(self, status: Status) -> None:
        names = {each.id: each.name for each in status.allocations}
        for run in status.runs:
            if not run.phase.finished:
                continue
            name = names.get(run.allocation if run.allocation is not None else -1, "")
            found = self.slurm.results.get((name, run.index), set())
            if run.counted and run.val_loss is not None:
                wanted = {(float(loss), spent) for loss, spent in found if loss != "nan"}
                self.holds((run.val_loss, run.train_time_ms) in wanted, f"run {run.index}: {run} and logs say {found}")
                self.holds((run.phase is Phase.SUCCEEDED) == (run.val_loss <= 3.28), f"{run}")
            elif run.counted:
                self.holds("nan" in {loss for loss, _ in found}, f"{run} diverged, and logs say {found}")
            else:
                thrown = [each for each in names.values() if self.slurm.results.get((each, run.index))]
                self.holds(not thrown, f"run {run.index} is {run.reason}, and has a result in {thrown}")

    # --- the end --------------------------------------------------------------------------------------------------

    def unrest(self, objects: dict[str, Json]) -> list[str]:
        """What is still to be done; nothing once all is well."""
        left = [
            f"job {each.id} ({each.name}) is {each.word}" for each in self.slurm.ever if _ours(each) and not each.over
        ]
        for name, raw in objects.items():
            metadata, status = raw["metadata"], Status.model_validate(raw.get("status") or {})
            if metadata.get("deletionTimestamp"):
                left.append(f"{name} is held by {metadata.get('finalizers')}")
            elif status.phase is None or not status.phase.finished:
                left.append(f"{name} is {status.phase} ({status.reason})")
            elif metadata.get("finalizers") or not metadata.get("labels"):
                left.append(f"{name} is {status.phase}, with {metadata.get('finalizers')} and {metadata.get('labels')}")
        return left


def _ours(job: Job) -> bool:
    return job.name.startswith(OURS) and job.comment.startswith("speedrun lab/")
