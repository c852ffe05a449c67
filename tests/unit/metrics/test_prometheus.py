"""Prometheus' own code on the alerts: the file is whole, and each alert comes when it should and not before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from speedrun_operator.api.phases import Phase
from speedrun_operator.distribution import Distribution
from speedrun_operator.metrics.figures import Figures, StorageFigures
from speedrun_operator.metrics.page import metrics
from speedrun_operator.shown import Shown
from testbed import prometheus
from testbed.part import Place
from unit.builders import at
from unit.metrics.figures import FIGURES, MISSED, TRAINING, WORK
from unit.metrics.rules import ALERTS, RULES, filled, queries

MINUTES = (0, 4)  # of the two scrapes
NOW = MINUTES[-1] * 60.0
CALM = replace(TRAINING, conditions=(("Admitted", True), ("BackendReachable", True), ("Stalled", False)))
WELL = replace(
    FIGURES,
    token_ends={"kubernetes": at(NOW + 3600), "platform": at(NOW + 7200)},
    work=replace(WORK, live=[CALM], storage=StorageFigures(1000, 500, 0.5)),
)


def slow() -> Distribution:
    made = Distribution((0.1, 1.0, 30.0, 60.0))
    for _ in range(100):
        made.add(45.0)
    return made


def works(**changes: object) -> Figures:
    return replace(WELL, work=replace(WELL.work, **changes))  # type: ignore[arg-type]


def runs(one: Shown) -> Figures:
    return works(live=[one])


LOGIN = WORK.logins[0]
QUIET = Distribution((0.1, 1.0, 30.0, 60.0)).counted()
ILL: Mapping[str, tuple[Figures, Figures]] = {
    "SpeedrunOperatorLoopStalled": (WELL, replace(WELL, beat_age=20)),
    "SpeedrunOperatorLoopSlow": (replace(WELL, lag=QUIET), replace(WELL, lag=slow().counted())),
    "SpeedrunOperatorNotWatching": (WELL, works(watching=False)),
    "SpeedrunCrdStale": (WELL, replace(WELL, crd_stale=True)),
    "SpeedrunApiForbidden": (
        replace(WELL, requests={("kubernetes", "403"): 1}),
        replace(WELL, requests={("kubernetes", "403"): 20}),
    ),
    "SpeedrunApiErrors": (
        replace(WELL, requests={("platform", "200"): 1, ("platform", "none"): 1}),
        replace(WELL, requests={("platform", "200"): 9, ("platform", "none"): 9}),
    ),
    "SpeedrunTokenExpires": (replace(WELL, token_ends={"platform": at(NOW + 200)}),) * 2,
    "SpeedrunLoginDown": (WELL, works(logins=[replace(LOGIN, connected=False, connect_failures=9)])),
    "SpeedrunPollsUnanswered": (WELL, works(polls={("Slurm", "answered"): 7, ("Slurm", "unanswered"): 90})),
    "SpeedrunRemoteCommandsSlow": (
        works(logins=[replace(LOGIN, latency=QUIET)]),
        works(logins=[replace(LOGIN, latency=slow().counted())]),
    ),
    "SpeedrunSubmissionsRefused": (WELL, works(submissions={("Slurm", "rejected"): 20})),
    "SpeedrunStorageLow": (WELL, works(storage=StorageFigures(1000, 150, 0.85))),
    "SpeedrunFailed": (WELL, works(finished=[replace(MISSED, phase=Phase.FAILED, ended=at(NOW - 60))])),
    "SpeedrunStalled": (WELL, runs(replace(CALM, conditions=(("Stalled", True),)))),
    "SpeedrunNotAdmitted": (WELL, runs(replace(CALM, conditions=(("Admitted", False),)))),
}


def firing(place: Place, *found: Figures | None) -> set[str]:
    """The alerts whose expressions hold at the last of these scrapes."""
    scrapes = [
        (
            round(at(60 * minute).timestamp() * 1000),
            metrics(lambda each=each: each, 9)({}).body.decode() if each else "",
        )
        for minute, each in zip(MINUTES, found, strict=True)
    ]
    answers = prometheus.ask(place, ALERTS, [rule["expr"] for rule in RULES], scrapes)
    assert answers.rules == []
    assert [each for each in answers.queries if isinstance(each, str)] == []
    return {rule["alert"] for rule, series in zip(RULES, answers.queries, strict=True) if series}


@pytest.mark.full
def test_nothing_fires_where_all_is_well(place: Place) -> None:
    assert firing(place, WELL, WELL) == set()


@pytest.mark.full
def test_an_operator_that_is_not_scraped_is_missed(place: Place) -> None:
    assert firing(place, None, None) == {"SpeedrunOperatorDown"}


@pytest.mark.full
@pytest.mark.parametrize("alert", ILL)
def test_an_alert_comes_when_it_should(place: Place, alert: str) -> None:
    assert firing(place, *ILL[alert]) == {alert}


def test_each_alert_is_tried() -> None:
    assert {*ILL, "SpeedrunOperatorDown"} == {rule["alert"] for rule in RULES}


@pytest.mark.full
def test_the_dashboards_queries_are_prometheus_own_language(place: Place) -> None:
    answers = prometheus.ask(place, ALERTS, [filled(each) for each in queries()], [])
    assert [each for each in answers.queries if isinstance(each, str)] == []
