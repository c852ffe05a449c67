"""Figures with something of everything, for what is held to the served names."""

from __future__ import annotations

from dataclasses import replace

from speedrun_operator.api.names import Identity
from speedrun_operator.api.phases import Phase
from speedrun_operator.distribution import Distribution
from speedrun_operator.listening import Page
from speedrun_operator.metrics.figures import Figures, LoginFigures, StorageFigures, Work
from speedrun_operator.metrics.page import metrics
from speedrun_operator.shown import SAID, Shown
from unit.builders import NOON, at
from unit.metrics.scraping import Scrape

COUNTED = Distribution((0.1, 1.0))
COUNTED.add(0.05)
COUNTED.add(0.1)
COUNTED.add(7.0)

TRAINING = Shown(
    Identity("lab", "mine", "uid-1"),
    created=NOON,
    phase=Phase.TRAINING,
    recipe="replay",
    backend="Slurm",
    target=3.28,
    val_loss=3.5,
    train_seconds=58.432,
    progress=0.25,
    step_seconds=0.1,
    remaining_seconds=90,
    queue_seconds=12.5,
    conditions=tuple((each.value, True) for each in SAID),
)
MISSED = replace(
    TRAINING,
    identity=Identity("lab", "old", "uid-2"),
    phase=Phase.MISSED,
    progress=1.0,
    remaining_seconds=None,
    ended=at(600),
    conditions=(),
)
WORK = Work(
    live=[TRAINING],
    finished=[MISSED],
    finished_counts={("lab", Phase.MISSED): 1},
    polls={("Slurm", "answered"): 7, ("Slurm", "unanswered"): 1},
    submissions={("Slurm", each): 2 for each in ("accepted", "rejected", "busy", "unknown")},
    preparations=3,
    cancellations=4,
    watching=True,
    storage=StorageFigures(1000, 150, 0.85),
    logins=[LoginFigures("me@login:22", True, 2, 1, {"completed": 3, "not_run": 1, "unknown": 0}, COUNTED.counted())],
)
FIGURES = Figures(
    version="1.2.3",
    now=at(700),
    beat_age=0.5,
    lag=COUNTED.counted(),
    requests={("kubernetes", "200"): 10, ("kubernetes", "none"): 1, ("platform", "503"): 2},
    token_ends={"kubernetes": at(3600), "platform": at(7200)},
    crd_installed=True,
    crd_stale=False,
    namespaces=["lab", "empty"],
    work=WORK,
)


def served(figures: Figures = FIGURES, most: int = 1000) -> Scrape:
    """What a scrape of the page says."""
    page: Page = metrics(lambda: figures, most)
    return Scrape.of(page({}).body.decode())
