"""The page: what is served of which figures, and how much of it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from speedrun_operator.api.names import Identity
from speedrun_operator.api.phases import Phase
from speedrun_operator.metrics.page import metrics
from speedrun_operator.metrics.table import ONE, TABLE, Metric
from unit.builders import NOON, at
from unit.metrics.figures import FIGURES, MISSED, TRAINING, WORK, served
from unit.metrics.scraping import Scrape

PARTS = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("",), "gauge": ("",)}


@pytest.mark.parametrize("metric", TABLE, ids=lambda each: each.name)
def test_each_metric_is_served_with_its_type_and_labels(metric: Metric) -> None:
    found = served()
    assert found.types[metric.name.removesuffix("_total")] == metric.kind
    for part in PARTS[metric.kind]:
        extra = {"le"} if part == "_bucket" else set()
        assert found.labels()[metric.name + part] == {*metric.labels, *extra}


def test_nothing_else_of_ours_is_served() -> None:
    known = {metric.name + part for metric in TABLE for part in PARTS[metric.kind]}
    assert {each.name for each in served().samples if not each.name.startswith("process_")} == known


@pytest.mark.parametrize("metric", TABLE, ids=lambda each: each.name)
def test_names_keep_to_the_conventions(metric: Metric) -> None:
    assert metric.name.startswith("speedrun_")
    assert (metric.kind == "counter") == metric.name.endswith("_total")
    words = metric.name.split("_")
    assert not {"milliseconds", "ms", "minutes", "hours", "percent", "percentage", "kib", "gib"} & {*words}
    if {"time", "duration", "remaining", "lag", "age", "timestamp"} & {*words}:
        assert words[-1] == "seconds"
    assert not metric.help.endswith(".")


def test_a_run_says_what_its_status_says() -> None:
    found, mine = served(), {"namespace": "lab", "name": "mine"}
    assert found.value("speedrun_phase", **mine) == 1
    assert found.value("speedrun_phase", **mine, phase="Training") == 1
    assert found.value("speedrun_val_loss", **mine) == 3.5
    assert found.value("speedrun_train_time_seconds", **mine) == 58.432
    assert found.value("speedrun_progress_ratio", **mine) == 0.25
    assert found.value("speedrun_queue_time_seconds", **mine) == 12.5
    assert found.value("speedrun_condition", **mine, type="Stalled") == 1
    assert found.value("speedrun_completion_timestamp_seconds", **mine) is None
    assert found.value("speedrun_completion_timestamp_seconds", namespace="lab", name="old") == at(600).timestamp()


def test_what_waits_in_the_queue_says_for_how_long() -> None:
    waits = replace(TRAINING, queued_since=at(100))
    found = served(replace(FIGURES, now=at(160), work=replace(WORK, live=[waits])))
    assert found.value("speedrun_queue_time_seconds", name="mine") == 60


def test_what_is_not_known_is_absent() -> None:
    new = replace(TRAINING, val_loss=None, train_seconds=None, progress=None, target=None, conditions=())
    found = served(replace(FIGURES, crd_stale=None, work=replace(WORK, live=[new], storage=None)))
    assert [each for each in found.samples if math.isnan(each.value)] == []
    for name in ("val_loss", "train_time_seconds", "progress_ratio", "target", "condition"):
        assert not [*found.series(f"speedrun_{name}", name="mine")]
    assert found.value("speedrun_operator_crd_stale") is None
    assert found.value("speedrun_operator_storage_used_ratio") is None


def test_series_end_with_their_speedrun() -> None:
    before = served()
    after = served(replace(FIGURES, work=replace(WORK, live=[])))
    assert [*before.series("speedrun_val_loss", name="mine")]
    assert not [each for each in after.samples if each.labels.get("name") == "mine"]


def test_phases_are_counted_in_every_watched_namespace() -> None:
    found = served()
    assert found.value("speedrun_resources", namespace="lab", phase="Training") == 1
    assert found.value("speedrun_resources", namespace="lab", phase="Missed") == 1
    assert {each.labels["phase"] for each in found.series("speedrun_resources", namespace="empty")} == {*Phase}
    assert {each.value for each in found.series("speedrun_resources", namespace="empty")} == {0}


@pytest.mark.parametrize(("most", "names"), [(0, set()), (1, {"mine"}), (2, {"mine", "old"}), (9, {"mine", "old"})])
def test_live_ones_come_first_where_not_all_get_series(most: int, names: set[str]) -> None:
    found = served(most=most)
    assert {each.labels["name"] for each in found.series("speedrun_info")} == names
    assert found.value("speedrun_resources_without_series") == 2 - len(names)
    assert found.value("speedrun_resources", namespace="lab", phase="Missed") == 1


def test_names_of_labels_are_escaped() -> None:
    odd = replace(TRAINING, recipe='a"b\\c\nd')
    found = served(replace(FIGURES, work=replace(WORK, live=[odd])))
    assert next(found.series("speedrun_info", name="mine")).labels["recipe"] == 'a"b\\c\nd'


def test_openmetrics_is_served_to_who_asks_for_it() -> None:
    page = metrics(lambda: FIGURES, 10)
    answer = page({"Accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.content_type.startswith("application/openmetrics-text")
    assert answer.body.endswith(b"# EOF\n")


def test_a_speedrun_costs_what_the_documents_say() -> None:
    live = [replace(TRAINING, identity=Identity("lab", f"attempt-{each:04}", str(each))) for each in range(100)]
    page = metrics(lambda: replace(FIGURES, work=replace(WORK, live=live, finished=[])), 1000)
    body = page({}).body.decode()
    assert len([each for each in Scrape.of(body).samples if each.labels.keys() >= {*ONE}]) == 12 * 100
    mine = [line for line in body.splitlines() if "attempt-0042" in line]
    assert len("\n".join(mine)) < 1024


def test_ended_ones_keep_their_result() -> None:
    found = served(replace(FIGURES, work=replace(WORK, live=[], finished=[MISSED])))
    assert found.value("speedrun_val_loss", name="old") == 3.5
    assert found.value("speedrun_phase", name="old", phase="Missed") == 1
    assert MISSED.created == NOON
