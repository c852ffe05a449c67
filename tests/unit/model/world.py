"""A whole world: operators (the real engine, resync, expiry, Slurm backend) over models of all that they speak to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta

from speedrun_operator.api.spec import Backend as Kind
from speedrun_operator.backends.slurm.backend import SlurmBackend, SlurmSite
from speedrun_operator.clock import Clock
from speedrun_operator.kube.client import Json
from speedrun_operator.lifecycle.situation import Policy
from speedrun_operator.planning import Site
from speedrun_operator.recipes.recipe import shipped
from speedrun_operator.reconcile import Engine, Setup
from speedrun_operator.resync import Resync
from unit.builders import CLUSTER
from unit.model.apiserver import NAMESPACE, ApiServer, ModelKube
from unit.model.disk import Disk
from unit.model.job import Fate, Job
from unit.model.shell import Shell
from unit.model.slurm import Slurm
from unit.model.truth import OURS, Truth
from unit.model.virtual import CLOCK, now, seconds
from unit.model.watcher import ModelWatcher, Stream
from unit.model.wire import ModelLogin, Wire

POLL, RESYNC, RELEASE = 15.0, 120.0, 60.0
HEALED_WITHIN = 4 * 3600.0
OTHERS = f"{OURS}99999999-1111-2222-3333-444455556666-0"
RECIPES = shipped()


class Operator:
    """One process of it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._kube = ModelKube(world.api)
        self._login = ModelLogin(world.wire)
        backend = SlurmBackend(self._login, SlurmSite("~/runs", "python3"), CLUSTER, monotonic=CLOCK.monotonic)  # type: ignore[arg-type]
        setup = Setup(
            cluster=CLUSTER,
            recipes=RECIPES,
            site=Site(gpu_partition="compute-{gpu}"),
            policy=Policy(never_after=timedelta(seconds=60)),
            poll_seconds=POLL,
            release_seconds=RELEASE,
            clock=world.clock,
        )
        self.engine = Engine(kube=self._kube, backends={Kind.SLURM: backend}, setup=setup)
        resync = Resync(self._kube, self.engine, lambda: [backend], [NAMESPACE], clock=world.clock)
        self.watcher = ModelWatcher(world.api, self._kube, self.engine, world.stream)
        self._tasks = [
            asyncio.create_task(each) for each in (self.engine.run(), resync.run(RESYNC), self.watcher.run())
        ]

    def kill(self) -> None:
        """It is gone between two instants; what it asked for may go on without it."""
        self._kube.dead = self._login.dead = True
        for task in self._tasks:
            task.cancel()

    def failure(self) -> BaseException | None:
        """What ended one of its loops."""
        ended = [each for each in self._tasks if each.done() and not each.cancelled()]
        return next((each.exception() for each in ended), None)


class Tracebacks(logging.Handler):
    """The operator's own failures: it catches them and goes on, and there shall be none."""

    def __init__(self, truth: Truth) -> None:
        super().__init__(logging.ERROR)
        self._truth = truth

    def emit(self, record: logging.LogRecord) -> None:
        self._truth.holds(not record.exc_info, self.format(record))

    def listen(self) -> None:
        logger = logging.getLogger("speedrun_operator")
        for each in [each for each in logger.handlers if isinstance(each, Tracebacks)]:
            logger.removeHandler(each)
        logger.addHandler(self)


class World:
    def __init__(self, *, min_age: float = 300, lag: float = 5, accounting: str = "on") -> None:
        self.disk = Disk()
        self.slurm = Slurm(self.disk, min_age=min_age, lag=lag, accounting=accounting)
        self.api = ApiServer()
        self.wire = Wire(Shell(self.disk, self.slurm))
        self.stream = Stream()
        self.truth = Truth(self.slurm, self.api)
        self.slurm.on_submitted, self.slurm.on_start = self.truth.submitted, self.truth.started
        self.slurm.on_cancelled = self.truth.cancelled
        self.api.on_status, self.api.on_gone = self.truth.status, self.truth.gone
        self.api.on_restored = self.truth.restored
        Tracebacks(self.truth).listen()
        self.operators: list[Operator] = []
        self.ahead = 0.0
        self.clock = Clock(now=lambda: now() + timedelta(seconds=self.ahead), monotonic=seconds)
        """The operator's; the cluster's is the world's own, and the API server has another (`api.ahead`)."""
        self._home = accounting
        self._strangers()

    def _strangers(self) -> None:
        """Jobs that are none of ours: of another cluster, and of a namespace that nobody watches."""
        for name, comment in ((OTHERS, "speedrun elsewhere/theirs"), (OTHERS.replace(CLUSTER, "d2d2d2d2"), "x")):
            fate = Fate(waits=10**7)
            self.slurm.add(Job(self.slurm.next_id, name, comment, name, (0,), 10, False, fate))
            self.slurm.next_id += 1
        self.slurm.save()

    def start(self) -> None:
        self.operators.append(Operator(self))

    def kill(self) -> None:
        for each in self.operators:
            each.kill()
        self.operators.clear()

    async def wait(self, span: float) -> None:
        await asyncio.sleep(max(0.0, span))
        self.check()

    def check(self) -> None:
        assert not self.truth.broken, self.truth.broken[0]
        assert not any(name in self.slurm.cancelled for name in self._others()), "somebody else's job was cancelled"
        for each in self.operators:
            assert each.failure() is None, f"a loop of the operator ended: {each.failure()!r}"

    def _others(self) -> list[tuple[int, str]]:
        return [(each.id, each.name) for each in self.slurm.ever[:2]]

    def heal(self) -> None:
        """All faults end. What people did stays, but for what would hold everything up."""
        self.api.fates.clear()
        self.wire.fates.clear()
        self.slurm.ill.clear()
        self.stream.late.clear()
        self.api.away = self.api.list_stale = self.wire.down = self.disk.full = self.stream.stuck = False
        self.slurm.silent = False
        self.slurm.accounting = self._home
        if not self.slurm.up:
            self.slurm.start(forgets=False)
        self.slurm.held.set()
        self.listens()
        if not self.operators:
            self.start()
        for name in list(self.api.objects):
            self.api.edit(name, {"suspend": None})

    def listens(self) -> None:
        self.stream.deaf = False
        for each in self.operators:
            each.watcher.list_again()

    async def rests(self, within: float = HEALED_WITHIN) -> float:
        """Wait until nothing is left to do; when that was. Raises AssertionError with what is left."""
        end = seconds() + within
        while left := self.truth.unrest(self.api.objects) or self.wire.at_work:
            assert seconds() < end, f"not at rest {within:.0f} s after all was well: {left}"
            await self.wait(20)
        return seconds()

    def close(self) -> None:
        self.kill()
        for task in asyncio.all_tasks():
            if task is not asyncio.current_task():
                task.cancel()

    def raw(self, name: str) -> Json:
        return self.api.objects[name]


def later(world: World, span: float, what: Callable[[], None]) -> None:
    """Do something later on."""
    asyncio.get_running_loop().call_later(span, what)
