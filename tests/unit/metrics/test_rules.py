"""The chart's alerts and dashboard use what is served, and nothing else; each alert says what to do."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from speedrun_operator.api.phases import Phase
from speedrun_operator.instruments import KUBERNETES, OUTCOMES, PLATFORM, POLLED
from speedrun_operator.shown import SAID
from unit.metrics.figures import served
from unit.metrics.promql import NotUnderstood, faults, used
from unit.metrics.rules import DASHBOARD, RULES, panels, queries

SERVED = served().labels()
VALUES = {
    "phase": frozenset(each.value for each in Phase),
    "type": frozenset(each.value for each in SAID),
    "api": frozenset({KUBERNETES, PLATFORM}),
    "outcome": frozenset({*OUTCOMES.values(), *POLLED.values(), "completed", "not_run"}),
}


@pytest.mark.parametrize("expression", [each["expr"] for each in RULES] + queries())
def test_expressions_use_what_is_served(expression: str) -> None:
    assert faults(expression, SERVED, VALUES) == []


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("speedrun_phases", "speedrun_phases is not served"),
        ('speedrun_phase{state="Failed"}', "speedrun_phase has no label state"),
        ('speedrun_phase{phase="Ended"}', "phase is never Ended"),
        ("sum by (recipe) (speedrun_phase)", "no series here has the label recipe"),
        ("sum(rate(speedrun_operator_polls_total{outcome=~\"answered|late\"}[5m]))", "outcome is never late"),
    ],
)  # fmt: skip
def test_what_is_not_served_is_found(expression: str, says: str) -> None:
    assert faults(expression, SERVED, VALUES) == [says]


@pytest.mark.parametrize(
    "expression", ["rate(speedrun_val_loss)", "speedrun_val_loss[5m]", "guess(speedrun_val_loss)", "sum(a", "a @ 5"]
)
def test_what_is_not_understood_is_refused(expression: str) -> None:
    with pytest.raises(NotUnderstood):
        used(expression)


@pytest.mark.parametrize("rule", RULES, ids=[each["alert"] for each in RULES])
def test_an_alert_says_what_it_means_and_what_to_do(rule: dict[str, Any]) -> None:
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"Speedrun[A-Za-z]+", rule["alert"])
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert re.fullmatch(r"\d+[mh]", rule.get("for", "1m"))
    assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    assert len(rule["annotations"]["runbook"]) > 80
    aggregated = re.search(r"by \(([a-z_, ]+)\)", rule["expr"])
    kept = {
        "instance",
        *(re.split(r",\s*", aggregated[1]) if aggregated else SERVED[used(rule["expr"]).selectors[0].metric]),
    }
    shown = {each for text in rule["annotations"].values() for each in re.findall(r"\$labels\.(\w+)", text)}
    assert shown <= kept, "a label that the expression does not keep"


def test_the_dashboard_is_whole() -> None:
    places = [(each["gridPos"]["x"], each["gridPos"]["y"]) for each in DASHBOARD["panels"]]
    assert len({each["id"] for each in DASHBOARD["panels"]}) == len(places) == len({*places})
    assert all(each["gridPos"]["x"] + each["gridPos"]["w"] <= 24 for each in DASHBOARD["panels"])
    assert all(panel["title"] and panel["description"] and panel["targets"] for panel in panels())
    text = json.dumps(DASHBOARD)
    variables = {each["name"] for each in DASHBOARD["templating"]["list"]}
    assert {*re.findall(r"\$\{?(\w+)", text)} - {"__rate_interval", "__all"} == variables


@pytest.mark.parametrize("variable", [each for each in DASHBOARD["templating"]["list"] if each["type"] == "query"])
def test_the_variables_are_labels_that_are_served(variable: dict[str, Any]) -> None:
    found = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"])
    assert found
    assert faults(found[1], SERVED, VALUES) == []
    assert found[2] in SERVED[used(found[1]).selectors[0].metric]


def test_every_metric_is_in_an_alert_or_on_the_dashboard() -> None:
    named = {each.metric for text in [*(rule["expr"] for rule in RULES), *queries()] for each in used(text).selectors}
    named |= {"speedrun_info", "speedrun_resources_without_series", "speedrun_operator_login_connects_total"}
    ours = {re.sub("_(bucket|sum|count)$", "", each) for each in SERVED if each.startswith("speedrun_")}
    assert ours - {re.sub("_(bucket|sum|count)$", "", each) for each in named} == set()
