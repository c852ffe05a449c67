"""What the engine asks of a backend for one Speedrun: submissions that status has claimed, and cancellations."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from speedrun_operator.api.resource import Resource
from speedrun_operator.api.spec import Backend as Kind
from speedrun_operator.api.status import Status
from speedrun_operator.backends.base import AllocationRef, Backend, Place, PrepareRef, Snapshot
from speedrun_operator.entries import DEFAULT_FORMAT, Entry, Setup, kind_of
from speedrun_operator.lifecycle.observation import Accepted, Busy, Outcome, PrepareOutcome, Ready, Underway, Unknown
from speedrun_operator.lifecycle.situation import Ask, Submit, Waiting
from speedrun_operator.planner import Planner
from speedrun_operator.planning import FIRST_ARM, RunPlan

logger = logging.getLogger(__name__)
NOWHERE = Busy("BackendMissing", "the operator has no such backend or login now; it is submitted once there is one")
ELSEWHERE = Unknown("BackendMissing", "the operator has no such backend or login now", reachable=False)


class Jobs:
    """See the module. Counts are since the start. `backends`: what there is now, which changes with the Secrets."""

    def __init__(self, backends: Mapping[Place, Backend], setup: Setup, planner: Planner) -> None:
        self._backends = backends
        self._planner = planner
        self._setup = setup
        self.submissions = 0
        self.outcomes: Counter[tuple[Kind, type[Outcome]]] = Counter()
        """What became of submissions, by backend."""
        self.cancellations = 0
        self.preparations = 0

    async def observe(
        self, backend: Backend, refs: Sequence[AllocationRef], preparing: Sequence[PrepareRef] = ()
    ) -> Snapshot:
        """What a backend says of all of them; a fault of its own is no answer either."""
        try:
            return await backend.observe(refs, preparing)
        except Exception:
            logger.exception("a poll failed in the operator itself; it is tried again")
            return Snapshot(error=Unknown("OperatorError", "the poll failed in the operator; its log says why"))

    async def submit(self, resource: Resource, submits: Sequence[Submit], plan_: RunPlan) -> dict[int, Outcome]:
        """The outcomes by allocation. What is submitted stands in the status that `resource` was read with."""
        tried = [each.allocation for each in submits]
        sealed = await self._planner.sealed(resource, plan_)
        if isinstance(sealed, Waiting):
            logger.warning("%s: not submitted: %s: %s", resource.identity, sealed.reason, sealed.message)
            return dict.fromkeys(tried, Busy(sealed.reason, sealed.message))
        plan_ = replace(plan_, sealed=sealed)
        answers = await asyncio.gather(*(self._submit(resource, number, plan_) for number in tried))
        return dict(zip(tried, answers, strict=True))

    async def _submit(self, resource: Resource, number: int, plan_: RunPlan) -> Outcome:
        allocation = next(each for each in resource.status.allocations if each.id == number)
        ref = next(each for each in self._setup.refs(resource) if each.allocation == number)
        arms = {each.index: each.arm for each in resource.status.runs}
        runs = [(index, arms.get(index, FIRST_ARM)) for index in allocation.runs]
        self.submissions += 1
        backend = self._at(ref.place)
        if backend is None:
            return ELSEWHERE
        outcome = await backend.submit(
            ref, plan_.for_runs(runs, allocation.time_limit_seconds, allocation.avoids or ())
        )
        self.outcomes[kind_of(resource), type(outcome)] += 1
        name = backend.name_of(ref)
        if isinstance(outcome, Accepted):
            logger.info("%s: %s is job %s", resource.identity, name, outcome.job_id)
        else:
            logger.warning("%s: %s: %s: %s", resource.identity, name, outcome.reason, outcome.message)
        return outcome

    async def prepare(self, resource: Resource, asks: Sequence[Ask], plan_: RunPlan) -> dict[str, PrepareOutcome]:
        """The outcomes by the entries' keys."""
        if not asks:
            return {}
        sealed = await self._planner.sealed(resource, plan_)
        if isinstance(sealed, Waiting):
            return {ask.need.key: Busy(sealed.reason, sealed.message) for ask in asks}
        plan_ = replace(plan_, sealed=sealed)
        self.preparations += len(asks)
        backend = self._at(self._setup.place(resource))
        if backend is None:
            return {ask.need.key: NOWHERE for ask in asks}
        answers = await asyncio.gather(*(backend.prepare(each, plan_) for each in asks))
        for ask, answer in zip(asks, answers, strict=True):
            match answer:
                case Ready():
                    logger.info("%s: %s is there", resource.identity, ask.need)
                case Underway():
                    logger.info("%s: job %s makes %s", resource.identity, answer.job_id, ask.need)
                case _:
                    logger.warning("%s: %s: %s: %s", resource.identity, ask.need, answer.reason, answer.message)
        return {ask.need.key: answer for ask, answer in zip(asks, answers, strict=True)}

    async def end(self, entry: Entry, numbers: Sequence[int]) -> bool:
        """Cancel allocations that status says are ending; whether all are certainly gone."""
        refs = [each for each in self._setup.refs(entry.resource) if each.allocation in numbers]
        answer = await self.cancel(refs)
        if isinstance(answer, Unknown):
            logger.warning("%s: not cancelled yet: %s: %s", entry.resource.identity, answer.reason, answer.message)
            return False
        now = self._setup.clock.monotonic()
        gone = {ref.allocation: now for ref in refs if (name := self.name_of(ref)) is not None and answer.get(name)}
        entry.gone |= gone
        return len(gone) == len(refs)

    async def cancel(self, refs: Sequence[AllocationRef]) -> Mapping[str, bool] | Unknown:
        """As `Backend.cancel`, counted, of one Speedrun's allocations. Unknown where some cannot be reached now."""
        self.cancellations += 1
        here = [each for each in refs if self._at(each.place) is not None]
        backend = self._at(here[0].place) if here else None
        answer = await backend.cancel(here) if backend is not None else {}
        return answer if len(here) == len(refs) else ELSEWHERE

    def can(self, kind: Kind) -> bool:
        """Whether the operator has this backend now, or has logins for it."""
        return any(place.kind is kind for place in self._backends) or (kind is Kind.SLURM and self._setup.logins.apart)

    def _at(self, place: Place | None) -> Backend | None:
        return self._backends.get(place) if place is not None else None

    def name_of(self, ref: AllocationRef) -> str | None:
        """The allocation's name there; None where nobody can be asked."""
        backend = self._at(ref.place)
        return backend.name_of(ref) if backend is not None else None

    def with_log_path(self, resource: Resource, status: Status) -> Status:
        """`status` with where a person finds the newest allocation's log."""
        backend = self._at(self._setup.place(resource))
        if not status.allocations or backend is None or not self._setup.is_here(resource, status.allocations[-1]):
            return status
        newest = status.allocations[-1]
        ref = AllocationRef(resource.identity, newest.id, newest.claimed, DEFAULT_FORMAT)
        return status.model_copy(update={"log_path": backend.log_path(ref)})
