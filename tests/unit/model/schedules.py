"""Whole lives as data: who wants what, what becomes of the jobs, what fails when. Drawn by hypothesis, or written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from speedrun_operator.api.names import FINALIZER, FINISHED_LABEL
from unit.model import apiserver, wire
from unit.model.job import Fate
from unit.model.virtual import seconds
from unit.model.world import World, later

NAMES = ("mine", "other")


@dataclass(frozen=True)
class Act:
    """`after` so many seconds, `what` happens, for `span` seconds where it is something that ends."""

    after: float
    what: str
    span: float = 60
    with_: Any = None


@dataclass(frozen=True)
class Life:
    specs: tuple[dict[str, Any], ...]
    fates: tuple[Fate, ...] = ()
    acts: tuple[Act, ...] = ()
    min_age: float = 300
    lag: float = 5
    accounting: str = "on"


async def live(life: Life) -> World:
    """Live it, let all faults end, and wait until all is at rest. Raises AssertionError where anything did not hold."""
    world = World(min_age=life.min_age, lag=life.lag, accounting=life.accounting)
    world.slurm.fates = list(life.fates)
    world.start()
    for name, spec in zip(NAMES, life.specs, strict=False):
        world.api.create(name, spec)
    until = 20.0
    for act in life.acts:
        await world.wait(act.after)
        ACTS[act.what](world, act)
        until = max(until, seconds() + act.span)
    await world.wait(until - seconds())
    world.heal()
    await world.rests()
    return world


def _name(act: Act) -> str:
    return act.with_ if act.with_ in NAMES else NAMES[0]


def _login_down(world: World, act: Act) -> None:
    world.wire.down = True
    later(world, act.span, lambda: setattr(world.wire, "down", False))


def _controller(world: World, act: Act) -> None:
    world.slurm.stop()
    later(world, act.span, lambda: world.slurm.up or world.slurm.start(forgets=act.with_ == "forgets"))


def _accounting(world: World, act: Act) -> None:
    if world.slurm.accounting == "on":
        world.slurm.accounting = "down"
        later(world, act.span, lambda: setattr(world.slurm, "accounting", "on"))


def _silent(world: World, act: Act) -> None:
    world.slurm.silent = True
    later(world, act.span, lambda: setattr(world.slurm, "silent", False))


def _disk(world: World, act: Act) -> None:
    world.disk.full = True
    later(world, act.span, lambda: setattr(world.disk, "full", False))


def _api(world: World, act: Act) -> None:
    world.api.away = True
    later(world, act.span, lambda: setattr(world.api, "away", False))


def _deaf(world: World, act: Act) -> None:
    world.stream.deaf = True
    later(world, act.span, world.listens)


def _stuck(world: World, act: Act) -> None:
    world.stream.stuck = True
    later(world, act.span, lambda: setattr(world.stream, "stuck", False))


def _stale(world: World, act: Act) -> None:
    world.api.list_stale = True
    later(world, act.span, lambda: setattr(world.api, "list_stale", False))


def _killed(world: World, act: Act) -> None:
    world.wire.lives_on = act.with_ != "stops"
    world.kill()
    later(world, act.span, lambda: world.operators or world.start())


def _twin(world: World, act: Act) -> None:
    world.start()

    def ends() -> None:
        if len(world.operators) > 1:
            world.operators.pop(0).kill()

    later(world, act.span, ends)


def _suspended(world: World, act: Act) -> None:
    world.api.edit(_name(act), {"suspend": True})
    later(world, act.span, lambda: world.api.edit(_name(act), {"suspend": None}))


def _again(world: World, act: Act) -> None:
    world.api.delete(_name(act))
    later(world, act.span, lambda: world.api.create(_name(act), {"recipe": {"name": "replay"}}))


def _exposed(world: World, act: Act) -> None:
    if (raw := world.api.objects.get(_name(act))) is not None:
        world.truth.exposed.add(raw["metadata"]["uid"])
    world.api.meddle(_name(act), {"finalizers": [] if act.with_ == "mine" else [FINALIZER]})


def _clocks(world: World, act: Act) -> None:
    world.ahead, world.api.ahead = {"mine": (600.0, -600.0), "other": (-600.0, 600.0)}[_name(act)]
    later(world, act.span, lambda: setattr(world, "ahead", 0.0))


ACTS: dict[str, Callable[[World, Act], Any]] = {
    "login down": _login_down,
    "controller down": _controller,
    "controller saves": lambda world, act: world.slurm.save(),
    "accounting down": _accounting,
    "programs silent": _silent,
    "disk full": _disk,
    "API away": _api,
    "watch deaf": _deaf,
    "list stale": _stale,
    "Kopf stuck": _stuck,
    "watch late": lambda world, act: world.stream.late.extend([act.span / 4] * 4),
    "listed again": lambda world, act: world.listens(),
    "operator killed": _killed,
    "two operators": _twin,
    "suspended": _suspended,
    "deleted": lambda world, act: world.api.delete(_name(act)),
    "deleted and made again": _again,
    "finalizer changed": _exposed,
    "clocks apart": _clocks,
    "restored": lambda world, act: world.api.restore(_name(act), anew=False),
    "restored anew": lambda world, act: world.api.restore(_name(act), anew=True),
    "annotations stripped": lambda world, act: world.api.meddle(_name(act), {"annotations": None}),
    "label by mistake": lambda world, act: world.api.meddle(_name(act), {"labels": {FINISHED_LABEL: "true"}}),
    "commands": lambda world, act: world.wire.fates.extend(act.with_),
    "requests": lambda world, act: world.api.fates.extend(act.with_),
    "sbatch": lambda world, act: world.slurm.ill.extend(act.with_),
    "nothing": lambda world, act: None,
}

# --- drawn -----------------------------------------------------------------------------------------------------------

SPANS = st.sampled_from([5.0, 40.0, 130.0, 340.0, 700.0])
AFTER = st.sampled_from([0.0, 0.05, 0.2, 1.0, 3.0, 20.0, 70.0, 320.0])
LOSSES = st.sampled_from(["3.27", "3.27", "3.28", "3.30", "nan", "crash", "silent", "hang"])
TROUBLES = st.sampled_from([None, None, None, "cancel", "preempt", "node", "requeue"])

fates = st.builds(
    Fate,
    waits=st.sampled_from([0.0, 2.0, 60.0, 400.0]),
    runs=st.lists(LOSSES, min_size=1, max_size=2).map(tuple),
    takes=st.sampled_from([1.0, 40.0, 200.0]),
    trouble=TROUBLES,
    after=st.sampled_from([0.5, 15.0, 60.0]),
    held=st.sampled_from([False, False, False, True]),
)
specs = st.fixed_dictionaries(
    {"recipe": st.just({"name": "replay"}), "timeLimitSeconds": st.sampled_from([180, 600])},
    optional={
        "runs": st.integers(1, 3),
        "runsPerAllocation": st.integers(1, 2),
        "parallelism": st.integers(1, 2),
        "backoffLimit": st.integers(0, 2),
        "activeDeadlineSeconds": st.sampled_from([100, 2000]),
        "stallTimeoutSeconds": st.sampled_from([60, 200]),
        "ttlSecondsAfterFinished": st.sampled_from([0, 60]),
    },
)


def _several(which: tuple[str, ...]) -> st.SearchStrategy[tuple[str, ...]]:
    one = st.sampled_from(("works", *which))
    return st.lists(one, min_size=1, max_size=5).map(tuple)


acts = st.one_of(
    st.builds(Act, AFTER, st.just("commands"), st.just(0.0), _several(wire.FATES)),
    st.builds(Act, AFTER, st.just("requests"), st.just(0.0), _several(apiserver.FATES)),
    st.builds(
        Act,
        AFTER,
        st.just("sbatch"),
        st.just(0.0),
        _several(("busy", "timed out", "taken", "taken", "slow", "stopped", "refuses")),
    ),
    st.builds(Act, AFTER, st.just("controller down"), SPANS, st.sampled_from(["remembers", "forgets"])),
    st.builds(Act, AFTER, st.just("programs silent"), SPANS),
    st.builds(Act, AFTER, st.just("operator killed"), SPANS, st.sampled_from(["goes on", "stops"])),
    st.builds(
        Act,
        AFTER,
        st.sampled_from(
            [
                *("suspended", "deleted", "deleted and made again", "finalizer changed", "label by mistake"),
                *("clocks apart", "restored", "restored anew", "annotations stripped"),
            ],
        ),
        SPANS,
        st.sampled_from(NAMES),
    ),
    st.builds(
        Act,
        AFTER,
        st.sampled_from(
            [
                *("login down", "controller saves", "accounting down", "disk full", "API away", "watch deaf"),
                *("watch late", "listed again", "list stale", "Kopf stuck", "two operators"),
            ]
        ),
        SPANS,
    ),
)
lives = st.builds(
    Life,
    specs=st.lists(specs, min_size=1, max_size=2).map(tuple),
    fates=st.lists(fates, max_size=5).map(tuple),
    acts=st.lists(acts, max_size=8).map(tuple),
    min_age=st.sampled_from([300.0, 300.0, 3.0]),
    lag=st.sampled_from([0.0, 5.0, 90.0]),
    accounting=st.sampled_from(["on", "on", "off"]),
)
