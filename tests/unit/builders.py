"""Small builders of what the pure modules look at, through the same doors as the operator: objects of the API server
are parsed, logs are read by the real parser, plans are made of the recipes that ship.

Times are seconds after NOON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from speedrun_operator.api.names import API_VERSION, FINALIZER, KIND
from speedrun_operator.api.resource import Resource
from speedrun_operator.api.status import Status, rfc3339
from speedrun_operator.backends.reading import Reading
from speedrun_operator.lifecycle.observation import JobState, Observed
from speedrun_operator.lifecycle.situation import Situation
from speedrun_operator.planning import Refusal, RunPlan, Site, plan
from speedrun_operator.progress.allocation import AllocationProgress
from speedrun_operator.recipes.recipe import shipped

NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)
CLUSTER = "c1c1c1c1"
UID = "0f0e0d0c-1111-2222-3333-444455556666"
REPLAY: Mapping[str, Any] = {"recipe": {"name": "replay"}}
SITE = Site()


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def raw(
    spec: Mapping[str, Any] | None = REPLAY,
    status: Status | Mapping[str, Any] | None = None,
    *,
    name: str = "mine",
    generation: int = 1,
    protected: bool = True,
    deleting: bool = False,
) -> dict[str, Any]:
    """A Speedrun as the API server gives it."""
    metadata: dict[str, Any] = {
        "namespace": "lab",
        "name": name,
        "uid": UID,
        "generation": generation,
        "resourceVersion": "1",
        "creationTimestamp": rfc3339(NOON),
    }
    if protected:
        metadata["finalizers"] = [FINALIZER]
    if deleting:
        metadata["deletionTimestamp"] = rfc3339(NOON)
    made: dict[str, Any] = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}
    if status is not None:
        made["status"] = status.dump() if isinstance(status, Status) else status
    return made


def resource(
    spec: Mapping[str, Any] | None = REPLAY, status: Status | Mapping[str, Any] | None = None, **metadata: Any
) -> Resource:
    return Resource.parse(raw(spec, status, **metadata))


def plan_of(each: Resource) -> RunPlan | Refusal | None:
    return plan(each.spec, shipped(), SITE) if each.spec else None


def situation(each: Resource | None = None, *, seconds: float = 0, **changes: Any) -> Situation:
    """`each` (by default a new Speedrun) at `seconds` after NOON; `changes` are fields of Situation."""
    each = each or resource()
    return Situation(**{"resource": each, "plan": plan_of(each), "now": at(seconds), "cluster": CLUSTER, **changes})


@dataclass(frozen=True)
class JobLog:
    """The log of a job as its script and a trainer write it, line by line. Each method gives a longer log."""

    lines: tuple[str, ...] = ()

    def line(self, *lines: str) -> JobLog:
        return replace(self, lines=(*self.lines, *lines))

    def mark(self, text: str, seconds: float = 0) -> JobLog:
        return self.line("", f"SPEEDRUN {text} time={at(seconds).timestamp():.3f}")

    def job(self, job: int = 17) -> JobLog:
        """The job began."""
        return self.mark(f"attempt job={job} node=node-a")

    def attempt(self, job: int = 17) -> JobLog:
        """The job began, and with it its first run."""
        return self.job(job).begun(0)

    def begun(self, run: int) -> JobLog:
        return self.mark(f"run={run} begin")

    def over(self, run: int, code: int = 0) -> JobLog:
        return self.mark(f"run={run} end exit={code}")

    def begin(self, stage: str, seconds: float = 0, *, run: int = 0) -> JobLog:
        return self.mark(f"run={run} stage={stage} begin", seconds)

    def end(self, stage: str, seconds: float = 0, *, run: int = 0, code: int = 0) -> JobLog:
        return self.mark(f"run={run} stage={stage} end exit={code}", seconds)

    def step(self, step: int, total: int = 20, *, average: str = "50.00") -> JobLog:
        return self.line(f"step:{step}/{total} train_time:{50 * step}ms step_avg:{average}ms")

    def validation(self, loss: str, step: int = 20, total: int = 20, *, time: int | None = None) -> JobLog:
        spent = 50 * step if time is None else time
        return self.line(f"step:{step}/{total} val_loss:{loss} train_time:{spent}ms step_avg:50.00ms")

    def finish(self, code: int = 0, *, run: int = 0) -> JobLog:
        """The run and then the job are over."""
        return self.over(run, code).closed(code)

    def closed(self, code: int = 0) -> JobLog:
        """The job's last line."""
        return self.mark(f"job end exit={code}")

    def trains(self, run: int, step: int = 5) -> JobLog:
        """A run begins and gets as far as `step`."""
        return self.begun(run).begin("train", 10, run=run).line("Resetting Model").step(step)

    def ran(self, run: int, loss: str | None, *, code: int = 0, time: int = 58432) -> JobLog:
        """A whole run with `loss` at its last step; None: without one."""
        log = self.trains(run, 19)
        log = log.validation(loss, time=time) if loss is not None else log
        return log.end("train", 90, run=run, code=code).over(run, code)

    @property
    def text(self) -> bytes:
        return "".join(f"{line}\n" for line in self.lines).encode()

    def read(self) -> AllocationProgress:
        """What the operator makes of it."""
        return Reading("modded-nanogpt").after(self.text).progress


STARTED = JobLog().attempt()
COMPILING = STARTED.begin("train", 10).line("Compiling model and warming up")
TRAINING = COMPILING.line("Resetting Model").validation("10.8258", 0).step(5)


def finished_log(loss: str, *, code: int = 0, time: int = 58432) -> JobLog:
    """A whole log with `loss` at the last step."""
    return TRAINING.step(19).validation(loss, time=time).end("train", 90, code=code).finish(code)


def queued(waits_for: str | None = None, **fields: Any) -> Observed:
    seen = {"asked": at(0), "job_id": "17", "submitted": at(1), "reason": waits_for}
    return Observed(JobState.QUEUED, **{**seen, **fields})


def running(log: JobLog | None = None, **fields: Any) -> Observed:
    """A job at work. `log` None: not all of it was read yet."""
    seen = {"asked": at(0), "job_id": "17", "submitted": at(1), "started": at(3), "node": "node-a"}
    return Observed(JobState.RUNNING, **{**seen, "log": log.read() if log else None, **fields})


def ended(log: JobLog | None = None, reason: str = "Completed", **fields: Any) -> Observed:
    """A job that has ended, its log read to the end."""
    seen = {"asked": at(101), "job_id": "17", "submitted": at(1), "started": at(3), "ended": at(100), "node": "node-a"}
    read = (log or JobLog()).read()
    return Observed(JobState.ENDED, **{**seen, "reason": reason, "log": read, "log_complete": True, **fields})


def unseen(seconds: float, **fields: Any) -> Observed:
    return Observed(JobState.UNSEEN, **{"asked": at(500), "unseen_for": timedelta(seconds=seconds), **fields})


def patched(target: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """RFC 7386, as the API server does it."""
    merged = dict(target)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            old = merged.get(key)
            merged[key] = patched(old if isinstance(old, dict) else {}, value)
        else:
            merged[key] = value
    return merged
