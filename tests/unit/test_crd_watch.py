"""What is said of a served CRD that is not this version's: once each time that it changes."""

from __future__ import annotations

import logging

import pytest

from speedrun_operator import crd
from speedrun_operator.crd import CrdWatch
from speedrun_operator.kube.events import Subject
from speedrun_operator.kube.served import Served
from unit.engine_world import ApiServer

DEPLOYMENT = Subject("apps/v1", "Deployment", "speedrun-system", "speedrun-operator")


async def said(*found: Served, deployment: Subject | None = DEPLOYMENT) -> tuple[CrdWatch, ApiServer]:
    api = ApiServer()
    watch = CrdWatch(api, deployment)
    for each in found:
        await watch.found(each)
    return watch, api


async def test_nothing_is_said_where_all_is_well() -> None:
    watch, api = await said(Served.UNPUBLISHED, Served.CURRENT, Served.CURRENT)
    assert (watch.served, api.events) == (Served.CURRENT, [])


async def test_a_stale_one_is_said_once_on_the_deployment(caplog: pytest.LogCaptureFixture) -> None:
    watch, api = await said(Served.STALE, Served.STALE)
    assert watch.served is Served.STALE
    event = api.events[0]
    assert len(api.events) == 1
    assert event["involvedObject"] == {
        "apiVersion": "apps/v1", "kind": "Deployment", "namespace": "speedrun-system", "name": "speedrun-operator",
    }  # fmt: skip
    assert (event["type"], event["reason"], event["metadata"]["namespace"]) == (
        "Warning",
        "CrdStale",
        "speedrun-system",
    )
    assert "speedrun-operator crd | kubectl apply --server-side --force-conflicts -f -" in event["message"]
    assert [each.levelname for each in caplog.records] == ["ERROR"]


async def test_the_event_has_the_uid_of_the_deployment_for_kubectl_describe() -> None:
    api = ApiServer()
    path = "/apis/apps/v1/namespaces/speedrun-system/deployments/speedrun-operator"
    api.objects[path] = {"metadata": {"uid": "1-2-3"}}
    await CrdWatch(api, DEPLOYMENT).found(Served.STALE)
    assert api.events[0]["involvedObject"]["uid"] == "1-2-3"


async def test_that_it_is_well_again_is_said_too() -> None:
    _, api = await said(Served.STALE, Served.UNPUBLISHED, Served.CURRENT, Served.CURRENT, Served.MISSING)
    assert [each["reason"] for each in api.events] == ["CrdStale", "CrdCurrent", "CrdMissing"]


async def test_a_missing_one_is_waited_for_and_said_again_after_a_while(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(crd.time, "monotonic", lambda: now)
    watch, api = await said(Served.MISSING, Served.MISSING)
    now += 61
    await watch.found(Served.MISSING)
    assert len(api.events) == 1
    assert [each.levelno for each in caplog.records] == [logging.ERROR] * 2
    assert all("kubectl apply" in each.getMessage() for each in caplog.records)


async def test_without_a_deployment_the_log_has_it(caplog: pytest.LogCaptureFixture) -> None:
    _, api = await said(Served.STALE, deployment=None)
    assert api.events == []
    assert "is not that of speedrun-operator" in caplog.text
