"""What tests of a backend do and look at, whatever the backend is."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from contract.worlds import World
from speedrun_operator.api.names import Identity
from speedrun_operator.api.spec import Spec
from speedrun_operator.backends.base import AllocationRef, Backend
from speedrun_operator.lifecycle.observation import Accepted, JobState, Observed, Outcome, Unknown
from speedrun_operator.planning import RunPlan, Site, plan
from speedrun_operator.progress.allocation import RunRecord
from speedrun_operator.recipes.recipe import shipped


def a_ref(name: str = "mine", since: datetime | None = None) -> AllocationRef:
    """The first allocation of a new Speedrun."""
    identity = Identity("lab", name, str(uuid.uuid4()))
    return AllocationRef(identity, 0, since or datetime.now(UTC), "modded-nanogpt")


def replay(
    where: Mapping[str, Any] | None = None,
    *,
    partition: str = "",
    slurm: Mapping[str, Any] | None = None,
    **parameters: Any,
) -> RunPlan:
    """The plan of a replay: three steps in a moment unless its `parameters` say otherwise.

    `where`: the fields of the spec that say where it runs.
    """
    given = {"steps": 3, "intervalMilliseconds": 10, **parameters}
    options = where or {"slurm": {"partition": partition, **(slurm or {})}}
    spec = Spec.model_validate({"recipe": {"name": "replay", "parameters": given}, **options})
    made = plan(spec, shipped(), Site())
    assert isinstance(made, RunPlan), made
    return made.for_runs([(0, "A")])


def accepted(outcome: Outcome) -> str:
    """The job's number."""
    assert isinstance(outcome, Accepted), outcome
    return outcome.job_id


async def submitted(world: World, ref: AllocationRef, where: Mapping[str, Any] | None = None, **kind: Any) -> str:
    """The number of the job of a replay."""
    return accepted(await world.backend.submit(ref, replay(where or world.somewhere(), **kind)))


async def observed(backend: Backend, ref: AllocationRef) -> Observed:
    """What one poll shows."""
    snapshot = await backend.observe([ref])
    assert snapshot.error is None, snapshot.error
    return snapshot.observed[backend.name_of(ref)]


async def until(
    world: World,
    ref: AllocationRef,
    holds: Callable[[Observed], bool],
    backend: Backend | None = None,
    limit: float = 30,
) -> Observed:
    """What polls show once `holds` is true of it."""
    backend = backend or world.backend
    deadline = time.monotonic() + limit
    while True:
        snapshot = await backend.observe([ref])
        seen = snapshot.observed.get(backend.name_of(ref))
        if seen is not None and holds(seen):
            return seen
        assert time.monotonic() < deadline, f"not within {limit:g} s; last: {seen or snapshot.error}"
        if not snapshot.behind:
            await world.passes()


async def gone(world: World, *refs: AllocationRef) -> None:
    """Cancel until all are gone."""
    deadline = time.monotonic() + 30
    while True:
        answer = await world.backend.cancel(refs)
        assert not isinstance(answer, Unknown), answer
        assert set(answer) == {world.backend.name_of(ref) for ref in refs}
        if all(answer.values()):
            return
        assert time.monotonic() < deadline, f"still there: {answer}"
        await world.passes()


def any_answer(seen: Observed) -> bool:
    return True


def runs(seen: Observed) -> bool:
    return seen.state is JobState.RUNNING


def trains(seen: Observed) -> bool:
    return step_of(seen) > 0


def ended(seen: Observed) -> bool:
    return seen.state is JobState.ENDED and seen.log_complete


def run_of(seen: Observed) -> RunRecord:
    """The first run in the log, which must have begun."""
    run = seen.log.run(0) if seen.log else None
    assert run is not None, seen
    return run


def step_of(seen: Observed) -> int:
    """The last step in the log; 0 before the first."""
    return run_of(seen).progress.step or 0 if seen.log and seen.log.runs else 0
