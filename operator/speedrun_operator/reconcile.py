"""The engine: the only place where decisions meet effects.

One resource at a time, under its lock: look at the latest object and at what a poll said, decide, write status if the
object has not changed since, submit what the written status names, decide again. Polls ask about all live allocations
in one remote command. A write that is refused or lost costs nothing but time: everything can be worked out again.

Runs in one event loop of its own. Watch events come in through `deliver` and `gone`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from speedrun_operator.api.names import FINISHED_LABEL, Identity
from speedrun_operator.api.phases import AllocationState
from speedrun_operator.api.resource import Resource
from speedrun_operator.api.status import Status
from speedrun_operator.backends.base import AllocationRef, Backend, Snapshot
from speedrun_operator.expiry import Expiry
from speedrun_operator.kube import events
from speedrun_operator.kube.client import ApiError, Conflict, Kube, NotFound, Refused, merge_patch
from speedrun_operator.lifecycle.decide import decide, is_finished
from speedrun_operator.lifecycle.observation import Accepted, Busy, Observed, Outcome, Unknown
from speedrun_operator.lifecycle.situation import Decision, Notice, Policy, Situation, Submit, Waiting
from speedrun_operator.lifecycle.writing import is_urgent
from speedrun_operator.planning import FIRST_ARM, Refusal, RunPlan, Site, plan
from speedrun_operator.recipes.recipe import Recipe

logger = logging.getLogger(__name__)

MOST_ROUNDS = 8
AT_ONCE = 16
RETRY_FIRST, RETRY_LONGEST = 2.0, 60.0
CANCEL_AGAIN = 20.0
MOST_SLEEP = 3600.0
DEFAULT_FORMAT = "modded-nanogpt"


@dataclass(frozen=True)
class Setup:
    """What the engine works with. Times in seconds."""

    cluster: str
    recipes: Mapping[str, Recipe]
    site: Site
    policy: Policy
    poll_seconds: float
    release_seconds: float
    waiting: Waiting | None = None


@dataclass
class Entry:
    """One known Speedrun. `quiet_polls` counts polls since its last status write.

    `waits`: a submission had no clear outcome, and the next one comes with `retry`, whatever wakes us before.
    """

    resource: Resource
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    again: bool = False
    working: bool = False
    failures: int = 0
    quiet_polls: int = 0
    waits: bool = False
    retry: asyncio.TimerHandle | None = None
    wake_at: datetime | None = None
    gone: dict[int, float] = field(default_factory=dict)

    def cancelled(self) -> frozenset[int]:
        """Allocations that were cancelled a short while ago; what still lives gets another word later."""
        return frozenset(number for number, at in self.gone.items() if time.monotonic() - at < CANCEL_AGAIN)


class Engine:
    """See the module. `backend` is None where no login is configured; `Setup.waiting` then says so."""

    def __init__(self, *, kube: Kube, backend: Backend | None, setup: Setup) -> None:
        self._kube = kube
        self._backend = backend
        self._setup = setup
        self._entries: dict[str, Entry] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._kick = asyncio.Event()
        self.expiry = Expiry(kube)
        self.ticked = time.monotonic()
        self.polls = 0
        self.submissions = 0
        self.cancellations = 0

    # --- what comes in -------------------------------------------------------------------------------------------

    def deliver(self, resource: Resource) -> None:
        """A version of an object was seen. Older ones than we know are left out."""
        uid = resource.identity.uid
        entry = self._entries.get(uid)
        if entry is None:
            entry = self._entries[uid] = Entry(resource)
        elif _newer(resource, entry.resource):
            entry.resource = resource
        self._wake(uid)

    def gone(self, uid: str) -> None:
        """The object is no longer watched: deleted, or finished and labelled so."""
        entry = self._entries.pop(uid, None)
        if entry is None:
            return
        if entry.retry is not None:
            entry.retry.cancel()
        if self._backend is not None:
            for ref in self._refs(entry.resource, all_=True):
                self._backend.forget(self._backend.name_of(ref))

    async def release(self, identity: Identity) -> None:
        """End the jobs of an object that is being deleted; return when they are gone, or after `release_seconds`."""
        if self._backend is None:
            return
        deadline = time.monotonic() + self._setup.release_seconds
        pause, said = 0.5, Unknown("NotAsked", "")
        refs = await self._refs_to_release(identity, deadline)
        while refs:
            self.cancellations += 1
            try:
                answer = await asyncio.wait_for(self._backend.cancel(refs), max(1.0, deadline - time.monotonic()))
            except TimeoutError:
                answer = said
            if isinstance(answer, Unknown):
                said = answer
            elif all(answer.values()):
                return
            else:
                said = Unknown("StillRunning", "Slurm has not ended the job yet")
            if time.monotonic() + pause > deadline:
                message = f"deleted without knowing that its job ended ({said.reason}: {said.message})"
                logger.warning("%s: %s", identity, message)
                await events.post(self._kube, identity, Notice(True, "JobNotCancelled", message), _now())
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, 10.0)

    # --- loops ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Poll until cancelled."""
        side = [asyncio.create_task(self._beat()), asyncio.create_task(self.expiry.run())]
        try:
            while True:
                behind = await self._poll()
                pause = 1.0 if behind else self._setup.poll_seconds * random.uniform(0.9, 1.1)
                await asyncio.sleep(pause)
        finally:
            for task in (*side, *self._tasks):
                task.cancel()

    async def _beat(self) -> None:
        while True:
            self.ticked = time.monotonic()
            await asyncio.sleep(1)

    async def _poll(self) -> bool:
        """One poll of everything live; True when there is more to read than one poll may."""
        if self._backend is None:
            return False
        by_uid = {
            uid: refs
            for uid, entry in self._entries.items()
            if not entry.resource.deleting and (refs := self._refs(entry.resource))
        }
        if not by_uid:
            return False
        try:
            snapshot = await self._backend.observe([ref for refs in by_uid.values() for ref in refs])
        except Exception:
            logger.exception("a poll failed in the operator itself; it is tried again")
            snapshot = Snapshot(error=Unknown("OperatorError", "the poll failed in the operator; its log says why"))
        self.polls += 1
        await asyncio.gather(*(self._after_poll(uid, refs, snapshot) for uid, refs in by_uid.items()))
        return snapshot.behind

    async def _after_poll(self, uid: str, refs: list[AllocationRef], snapshot: Snapshot) -> None:
        assert self._backend is not None
        observed = {
            ref.allocation: snapshot.observed[name]
            for ref in refs
            if (name := self._backend.name_of(ref)) in snapshot.observed
        }
        entry = self._entries.get(uid)
        if entry is not None:
            entry.quiet_polls += 1
            if snapshot.error is not None and entry.lock.locked():
                return  # whoever works on it asks the backend, too, and later than this poll did
        if observed or snapshot.error:
            await self._reconcile(uid, observed=observed, unanswered=snapshot.error)

    def _wake(self, uid: str) -> None:
        entry = self._entries[uid]
        if entry.working:
            entry.again = True
            return
        entry.working = True
        task = asyncio.get_running_loop().create_task(self._work(uid, entry))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self, uid: str, entry: Entry) -> None:
        try:
            while True:
                entry.again = False
                await self._reconcile(uid)
                if not entry.again:
                    return
        finally:
            entry.working = False

    # --- one resource --------------------------------------------------------------------------------------------

    async def _reconcile(
        self, uid: str, *, observed: Mapping[int, Observed] | None = None, unanswered: Unknown | None = None
    ) -> None:
        """Never raises: what fails is logged and tried again with back-off."""
        entry = self._entries.get(uid)
        if entry is None:
            return
        try:
            async with self._slots, entry.lock:
                settled = await self._settle(entry, observed or {}, unanswered)
        except NotFound:
            self.gone(uid)
            return
        except Refused as error:
            logger.error("%s: the API server refuses the status: %s", entry.resource.identity, error)
            settled = False
        except ApiError as error:
            logger.warning("%s: %s", entry.resource.identity, error)
            settled = False
        except Exception:
            logger.exception("%s: reconciling failed in the operator itself", entry.resource.identity)
            settled = False
        if settled is not None:
            self._schedule(uid, entry, settled)

    def _schedule(self, uid: str, entry: Entry, settled: bool) -> None:
        if entry.retry is not None:
            entry.retry.cancel()
            entry.retry = None
        entry.failures = 0 if settled else entry.failures + 1
        entry.waits = entry.waits and not settled
        if not settled and uid in self._entries:
            wait = min(RETRY_LONGEST, RETRY_FIRST * 2 ** min(entry.failures - 1, 10)) * random.uniform(0.8, 1.2)
        elif entry.wake_at is not None and uid in self._entries:
            wait = max(0.1, (entry.wake_at - _now()).total_seconds())
        else:
            return
        entry.retry = asyncio.get_running_loop().call_later(min(wait, MOST_SLEEP), self._retry, uid)

    def _retry(self, uid: str) -> None:
        if entry := self._entries.get(uid):
            entry.waits = False
            self._wake(uid)

    async def _settle(self, entry: Entry, observed: Mapping[int, Observed], unanswered: Unknown | None) -> bool | None:
        """Decide, write and act until nothing changes.

        False where something needs another try; None where that try is set already.
        """
        outcomes: dict[int, Outcome] = {}
        gone = entry.cancelled()
        for _ in range(MOST_ROUNDS):
            resource = entry.resource
            if resource.deleting:
                return True
            if is_finished(resource.status):
                self.expiry.note(resource)
                await self._label(entry)
                return True
            if not resource.protected:
                return True  # Kopf adds the finalizer; its event wakes us
            plan_ = self._plan(resource)
            situation = Situation(
                resource=resource,
                plan=plan_,
                now=_now(),
                cluster=self._setup.cluster,
                waiting=self._setup.waiting,
                observed=observed,
                outcomes=outcomes,
                gone=gone,
                unanswered=unanswered,
                policy=self._setup.policy,
            )
            decision = decide(situation)
            submit = () if entry.waits else decision.submit
            try:
                await self._write(entry, decision, fresh=bool(submit))
            except Conflict:
                await self._read(entry)
                continue
            entry.wake_at = decision.wake_at
            if is_finished(entry.resource.status) or entry.resource.deleting:
                continue
            if decision.cancel and not await self._cancel(entry, decision.cancel):
                return False
            gone = entry.cancelled()
            if decision.submit and not submit:
                return None
            if submit:
                if not isinstance(plan_, RunPlan) or not entry.resource.protected:
                    return False
                outcomes = await self._submit_all(entry.resource, submit, plan_)
                entry.waits = any(isinstance(outcome, Busy | Unknown) for outcome in outcomes.values())
            elif not decision.cancel:
                return not _unsettled(decision.status)
            observed, unanswered = {}, None
        return False

    def _plan(self, resource: Resource) -> RunPlan | Refusal | None:
        if resource.spec is None:
            return None
        return plan(resource.spec, self._setup.recipes, self._setup.site)

    async def _submit_all(self, resource: Resource, submits: Sequence[Submit], plan_: RunPlan) -> dict[int, Outcome]:
        tried = [each.allocation for each in submits]
        answers = await asyncio.gather(*(self._submit(resource, number, plan_) for number in tried))
        return dict(zip(tried, answers, strict=True))

    async def _submit(self, resource: Resource, number: int, plan_: RunPlan) -> Outcome:
        assert self._backend is not None
        allocation = next(each for each in resource.status.allocations if each.id == number)
        ref = next(each for each in self._refs(resource) if each.allocation == number)
        arms = {each.index: each.arm for each in resource.status.runs}
        runs = [(index, arms.get(index, FIRST_ARM)) for index in allocation.runs]
        self.submissions += 1
        outcome = await self._backend.submit(ref, plan_.for_runs(runs))
        name = self._backend.name_of(ref)
        if isinstance(outcome, Accepted):
            logger.info("%s: %s is job %s", resource.identity, name, outcome.job_id)
        else:
            logger.warning("%s: %s: %s: %s", resource.identity, name, outcome.reason, outcome.message)
        return outcome

    async def _cancel(self, entry: Entry, numbers: Sequence[int]) -> bool:
        """Cancel allocations that status says are ending; whether all are certainly gone."""
        assert self._backend is not None
        refs = [each for each in self._refs(entry.resource) if each.allocation in numbers]
        self.cancellations += 1
        answer = await self._backend.cancel(refs)
        if isinstance(answer, Unknown):
            logger.warning("%s: not cancelled yet: %s: %s", entry.resource.identity, answer.reason, answer.message)
            return False
        now = time.monotonic()
        entry.gone |= {ref.allocation: now for ref in refs if answer.get(self._backend.name_of(ref))}
        return all(ref.allocation in entry.gone for ref in refs)

    async def _write(self, entry: Entry, decision: Decision, *, fresh: bool) -> None:
        """Write what differs, on the version decided on; then post events. `fresh`: read if nothing differs."""
        resource = entry.resource
        new = self._with_log_path(resource, decision.status)
        patch = merge_patch(resource.status.dump(), new.dump())
        if not patch:
            if fresh:
                await self._read(entry)
            return
        if not is_urgent(resource.status, new) and entry.quiet_polls < 2:
            return
        identity = resource.identity
        body = {"metadata": {"resourceVersion": resource.resource_version}, "status": patch}
        raw = await self._kube.patch_speedrun(identity.namespace, identity.name, body, subresource="status")
        entry.resource = Resource.parse(raw)
        entry.quiet_polls = 0
        for notice in decision.notices:
            log = logger.warning if notice.warning else logger.info
            log("%s: %s: %s", identity, notice.reason, notice.message)
            await events.post(self._kube, identity, notice, _now())

    async def _read(self, entry: Entry) -> None:
        identity = entry.resource.identity
        resource = Resource.parse(await self._kube.get_speedrun(identity.namespace, identity.name))
        if resource.identity.uid != identity.uid:
            raise NotFound(404, f"{identity} is another object now")
        entry.resource = resource

    async def _label(self, entry: Entry) -> None:
        """Take a finished resource out of the watch, once Kopf has let go of it."""
        resource = entry.resource
        if resource.protected or resource.labelled_finished:
            return
        identity = resource.identity
        body = {
            "metadata": {"resourceVersion": resource.resource_version, "labels": {FINISHED_LABEL: "true"}},
        }
        try:
            entry.resource = Resource.parse(await self._kube.patch_speedrun(identity.namespace, identity.name, body))
        except Conflict:
            await self._read(entry)
            entry.again = True

    def _with_log_path(self, resource: Resource, status: Status) -> Status:
        if not status.allocations or self._backend is None:
            return status
        newest = status.allocations[-1]
        ref = AllocationRef(resource.identity, newest.id, newest.claimed, DEFAULT_FORMAT)
        return status.model_copy(update={"log_path": self._backend.log_path(ref)})

    # --- names ---------------------------------------------------------------------------------------------------

    def _refs(self, resource: Resource, *, all_: bool = False) -> list[AllocationRef]:
        recipe = self._setup.recipes.get(resource.spec.recipe.name) if resource.spec else None
        log_format = recipe.log_format if recipe else DEFAULT_FORMAT
        return [
            AllocationRef(resource.identity, each.id, each.submitted or each.claimed, log_format)
            for each in resource.status.allocations
            if all_ or each.state is not AllocationState.ENDED
        ]

    async def _refs_to_release(self, identity: Identity, deadline: float) -> list[AllocationRef]:
        """Every allocation that may have a job: those of the status, and the next one, in case that write was lost."""
        entry = self._entries.get(identity.uid)
        if entry is not None:
            try:
                await asyncio.wait_for(entry.lock.acquire(), max(1.0, deadline - time.monotonic()))
                entry.lock.release()
            except TimeoutError:
                pass  # a submission hangs; the fence in the ledger ends its job
            resource = entry.resource
        else:
            try:
                resource = Resource.parse(await self._kube.get_speedrun(identity.namespace, identity.name))
            except ApiError:
                return [AllocationRef(identity, 0, _now(), DEFAULT_FORMAT)]
        if is_finished(resource.status):
            return []
        number = len(resource.status.allocations)
        following = AllocationRef(identity, number, _now(), DEFAULT_FORMAT)
        return [*self._refs(resource), following]


def _unsettled(status: Status) -> bool:
    return any(each.state is AllocationState.SUBMITTING for each in status.allocations)


def _newer(one: Resource, other: Resource) -> bool:
    """Whether `one` is a later version. Where versions are no numbers, whatever came last is."""
    try:
        return int(one.resource_version) > int(other.resource_version)
    except ValueError:
        return one.resource_version != other.resource_version


def _now() -> datetime:
    return datetime.now(UTC)
