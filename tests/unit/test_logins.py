"""Logins of namespaces through the real engine: whose backend jobs go to, and what is said where there is none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from speedrun_operator.api.phases import ConditionType, Phase
from speedrun_operator.api.resource import Resource
from speedrun_operator.api.spec import Backend as Kind
from speedrun_operator.api.status import Status
from speedrun_operator.backends.base import AllocationRef, PrepareRef, Snapshot
from speedrun_operator.backends.memory import Cluster, Job, MemoryBackend
from speedrun_operator.entries import Setup
from speedrun_operator.lifecycle.observation import Unknown
from speedrun_operator.lifecycle.situation import Policy, Waiting
from speedrun_operator.logins import Logins
from speedrun_operator.planning import RunPlan
from speedrun_operator.recipes.recipe import Recipe, shipped
from speedrun_operator.reconcile import Engine
from speedrun_operator.resync import Resync
from speedrun_operator.source.resolved import Source, Unresolved, Wanted
from unit.builders import REPLAY, SITE, TRAINING, finished_log, raw
from unit.engine_world import ApiServer

ALICE, BOB, CAROL = "alice@login:22", "bob@login:22", "carol@login:22"
LIMIT_SECONDS = 10.0


class NoSources:
    async def resolve(self, wanted: Wanted, recipe: Recipe, secret: bytes) -> Source | Unresolved:
        raise AssertionError("nothing is looked up for a replay")


class Hanging(MemoryBackend):
    """A login of which nothing ever comes back."""

    async def observe(self, refs: Sequence[AllocationRef], preparing: Sequence[PrepareRef] = ()) -> Snapshot:
        await asyncio.Event().wait()
        raise AssertionError

    async def cancel(self, refs: Sequence[AllocationRef]) -> Mapping[str, bool] | Unknown:
        await asyncio.Event().wait()
        raise AssertionError

    async def jobs(self) -> Unknown:
        await asyncio.Event().wait()
        raise AssertionError


def trains(plan: RunPlan) -> Any:
    """It trains until it is told otherwise."""
    return (Job.start, lambda job: job.write(TRAINING.text))


def whole(plan: RunPlan) -> Any:
    return (Job.start, lambda job: job.write(finished_log("3.27").text), Job.end)


class Teams:
    """Speedruns in namespaces under one engine."""

    def __init__(self, secrets: Mapping[str, str], release_seconds: float) -> None:
        self.api = ApiServer()
        self.logins = Logins(secrets)
        setup = Setup(
            cluster="memory00", recipes=shipped(), site=SITE, policy=Policy(), poll_seconds=0.02,
            release_seconds=release_seconds, logins=self.logins,
        )  # fmt: skip
        self.engine = Engine(kube=self.api, backends={}, setup=setup)
        self.clusters: list[Cluster] = []

    def opens(self, name: str, identity: str, backend: MemoryBackend) -> MemoryBackend:
        self.clusters.append(backend.cluster)
        self.engine.opened(name, identity, backend, NoSources())
        return backend

    def apply(self, namespace: str, name: str = "mine", **spec: Any) -> str:
        """Make one; its path."""
        made = raw({**REPLAY, **spec}, name=name)
        number = len(self.api.objects)
        made["metadata"] |= {"namespace": namespace, "uid": f"0f0e0d0c-1111-2222-3333-44445555{number:04d}"}
        path = f"/apis/speedrun.dev/v1alpha1/namespaces/{namespace}/speedruns/{name}"
        self.api.objects[path] = made
        self.engine.deliver(Resource.parse(made))
        return path

    def resource(self, path: str) -> Resource:
        return Resource.parse(self.api.objects[path])

    async def until(self, path: str, what: str, holds: Any) -> Status:
        try:
            async with asyncio.timeout(LIMIT_SECONDS):
                while not holds(status := self.resource(path).status):
                    for each in self.clusters:
                        each.advance()
                    await asyncio.sleep(0.01)
                return status
        except TimeoutError:
            raise AssertionError(f"not {what}: {self.resource(path).status.dump()}") from None


@asynccontextmanager
async def teams(release_seconds: float = 1, **secrets: str) -> AsyncIterator[Teams]:
    world = Teams({namespace.replace("_", "-"): secret for namespace, secret in secrets.items()}, release_seconds)
    task = asyncio.create_task(world.engine.run())
    try:
        yield world
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def succeeded(status: Status) -> bool:
    return status.phase is Phase.SUCCEEDED


def training(status: Status) -> bool:
    return status.phase is Phase.TRAINING


def says(status: Status, type_: ConditionType) -> tuple[str, str, str]:
    found = status.condition(type_)
    return (found.status, found.reason, found.message) if found else ("", "", "")


def unreachable(status: Status) -> bool:
    return says(status, ConditionType.BACKEND_REACHABLE)[0] == "False"


async def test_each_namespace_submits_through_its_own_login_and_a_third_through_none() -> None:
    async with teams(team_a="a", team_b="b") as world:
        a, b = (
            world.opens("a", ALICE, MemoryBackend(Cluster(whole))),
            world.opens("b", BOB, MemoryBackend(Cluster(whole))),
        )
        one, two, three = (world.apply(f"team-{each}") for each in "abc")
        for path, backend, identity in ((one, a, ALICE), (two, b, BOB)):
            status = await world.until(path, "finished", succeeded)
            assert [each.login for each in status.allocations] == [identity]
            assert list(backend.cluster.jobs) == [status.allocations[0].name]
        status = await world.until(three, "waiting", lambda status: status.reason == "NamespaceNotListed")
        said = says(status, ConditionType.ADMITTED)
        assert (status.phase, said[0]) == (Phase.PENDING, "False")
        assert "team-c has no login: the operator's setting logins" in said[2]


async def test_a_secret_at_fault_is_said_and_what_waits_goes_once_it_is_right() -> None:
    async with teams(team_a="a") as world:
        path = world.apply("team-a")
        await world.until(path, "waiting", lambda status: status.reason == "LoginNotConfigured")
        world.engine.shut("a", Waiting("SecretMissing", "the login's Secret a is not there"))
        status = await world.until(path, "waiting", lambda status: status.reason == "SecretMissing")
        assert says(status, ConditionType.ADMITTED) == ("False", "SecretMissing", "the login's Secret a is not there")
        world.opens("a", ALICE, MemoryBackend(Cluster(whole)))
        await world.until(path, "finished", succeeded)


async def test_one_that_hangs_keeps_nobody_else_waiting() -> None:
    """Neither polls and cancellations nor the resync; 40 of them would fill every slot."""
    async with teams(team_a="a", team_b="b") as world:
        hanging = world.opens("b", BOB, Hanging(Cluster(trains)))
        world.opens("a", ALICE, MemoryBackend(Cluster(whole)))
        stuck = [world.apply("team-b", f"stuck-{each}") for each in range(40)]
        for path in stuck:
            await world.until(path, "submitted", lambda status: status.job is not None)
            world.api.objects[path]["spec"] |= {"suspend": True}
            world.api.objects[path]["metadata"]["resourceVersion"] += "0"
            world.engine.deliver(world.resource(path))
        assert hanging.cluster.submissions == 40
        path = world.apply("team-a")
        await world.until(path, "finished", succeeded)


async def test_the_resync_does_not_wait_for_one_that_hangs(monkeypatch: Any) -> None:
    monkeypatch.setattr("speedrun_operator.resync.JOBS_SECONDS", 0.05)
    async with teams(team_a="a", team_b="b") as world:
        world.opens("b", BOB, Hanging(Cluster(trains)))
        a = world.opens("a", ALICE, MemoryBackend(Cluster(trains)))
        path = world.apply("team-a")
        await world.until(path, "training", training)
        del world.api.objects[path]

        class Lists(ApiServer):
            async def each_speedrun(self, *_: Any, **__: Any) -> Any:
                for each in self.objects.values():
                    yield each

        resync = Resync(Lists(), world.engine, lambda: world.engine.backends, [])
        async with asyncio.timeout(5):
            await resync.once()
            await resync.once()
        assert await a.jobs() == [], "an orphan of the other login was ended meanwhile"


async def test_another_user_in_the_secret_makes_jobs_unknown_and_not_lost() -> None:
    async with teams(team_a="a") as world:
        old = world.opens("a", ALICE, MemoryBackend(Cluster(trains)))
        path = world.apply("team-a")
        name = (await world.until(path, "training", training)).allocations[0].name
        new = world.opens("a", CAROL, MemoryBackend(Cluster(whole)))
        status = await world.until(path, "unknown", unreachable)
        _, reason, message = says(status, ConditionType.BACKEND_REACHABLE)
        assert reason == "LoginChanged"
        assert f"submitted as {ALICE}" in message and f"the login of team-a is {CAROL} now" in message
        for _ in range(50):
            new.cluster.advance(60)
            await asyncio.sleep(0.005)
        status = world.resource(path).status
        assert (status.phase, len(status.allocations), new.cluster.jobs) == (Phase.TRAINING, 1, {})
        # What comes after that is submitted as the new one; what was there goes on once the old one is back.
        await world.until(world.apply("team-a", "next"), "finished", succeeded)
        world.opens("a", ALICE, MemoryBackend(old.cluster))
        await world.until(path, "reachable", lambda status: not unreachable(status))
        old.cluster.jobs[name].write(finished_log("3.27").text)
        old.cluster.jobs[name].end()
        assert (await world.until(path, "finished", succeeded)).allocations[0].name == name


async def test_a_deletion_does_not_take_another_users_word_for_the_jobs_end() -> None:
    async with teams(team_a="a") as world:
        old = world.opens("a", ALICE, MemoryBackend(Cluster(trains)))
        path = world.apply("team-a")
        name = (await world.until(path, "training", training)).allocations[0].name
        world.opens("a", CAROL, MemoryBackend(Cluster(trains)))
        await world.engine.release(world.resource(path).identity)
        assert [each["reason"] for each in world.api.events].count("JobNotCancelled") == 1
        assert old.cluster.marks[name] in await old.jobs()


async def test_what_nobody_ever_submitted_is_deleted_at_once_whatever_its_login_does() -> None:
    async with teams(release_seconds=30, team_a="a") as world:
        world.opens("a", ALICE, MemoryBackend(Cluster(trains)))
        world.engine.shut("a", Waiting("SecretMissing", "gone"))
        waits = world.apply("team-a", "waits")
        await world.until(waits, "waiting", lambda status: status.reason == "SecretMissing")
        async with asyncio.timeout(5):
            await world.engine.release(world.resource(waits).identity)


async def test_a_status_that_names_another_teams_login_is_not_followed() -> None:
    async with teams(team_a="a", team_b="b") as world:
        a = world.opens("a", ALICE, MemoryBackend(Cluster(trains)))
        world.opens("b", BOB, MemoryBackend(Cluster(trains)))
        path = world.apply("team-b")
        await world.until(path, "training", training)
        kept = world.api.objects[path]
        kept["status"]["allocations"][0] |= {"login": ALICE, "state": "Submitting", "jobId": None}
        kept["metadata"]["resourceVersion"] += "0"
        world.engine.deliver(world.resource(path))
        await world.until(path, "unknown", unreachable)
        assert a.cluster.jobs == {}


def test_without_logins_all_namespaces_use_the_operators_own() -> None:
    logins = Logins()
    assert (logins.names, logins.name_of("any"), logins.identity_of("any"), logins.waits("any")) == (
        ("",),
        "",
        None,
        None,
    )
    assert logins.holds("any", None)
    assert not logins.holds("any", ALICE), "submitted while namespaces had logins of their own"
    assert "Put that login back" in logins.elsewhere("any", ALICE).message


def test_what_the_operators_own_login_submitted_is_unknown_where_namespaces_have_theirs() -> None:
    logins = Logins({"team-a": "a"})
    logins.learned("a", ALICE)
    assert not logins.holds("team-a", None)
    said = logins.elsewhere("team-a", None)
    assert said.reason == "LoginChanged" and "through the operator's own login" in said.message
    assert logins.elsewhere("team-c", ALICE).reason == "NamespaceNotListed"
    logins.failed("a", Waiting("SecretMissing", "it is gone"))
    assert logins.elsewhere("team-a", ALICE).reason == "SecretMissing"


def test_pods_need_no_login() -> None:
    setup = Setup(
        cluster="c", recipes={}, site=SITE, policy=Policy(), poll_seconds=1, release_seconds=1,
        logins=Logins({"team-a": "a"}),
    )  # fmt: skip
    resource = Resource.parse(raw({"recipe": {"name": "replay"}, "backend": "Pods"}))
    place = setup.place(resource)
    assert place is not None and place.kind is Kind.PODS
    assert (setup.waits(resource), setup.login(resource)) == (None, None)
