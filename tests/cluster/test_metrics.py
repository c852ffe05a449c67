"""/metrics of a real operator while it works, and what it says of a CRD that is not its own."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cluster.speedruns import Speedruns, quick, slow
from cluster.stale import stale_crd
from cluster.waiting import until
from testbed import ports, prometheus
from testbed.bed import Bed
from testbed.facts import Facts
from testbed.kubectl import Kubectl
from testbed.operator import CRD, Operator
from testbed.part import Place
from unit.metrics.promql import used
from unit.metrics.rules import ALERTS, RULES, filled, queries
from unit.metrics.scraping import Scrape, scrape

DEPLOYMENT = {"SPEEDRUN_DEPLOYMENT__NAME": "speedrun-operator", "SPEEDRUN_DEPLOYMENT__NAMESPACE": "speedrun-system"}

# What a run that has just begun may not have yet.
LATER = {"speedrun_step_time_seconds", "speedrun_remaining_seconds"}
NO_LOGIN = ("ssh_host", "ssh_user", "ssh_key", "ssh_known_hosts")


@contextmanager
def operator_with_metrics(place: Place, facts: Facts, **settings: str) -> Iterator[tuple[Operator, int]]:
    """An installed operator that is not started yet, and the port of its /metrics."""
    port = ports.kept_ports(place.state / "metrics" / "ports.json", ["metrics"])["metrics"]
    own = {"SPEEDRUN_METRICS__ADDRESS": f"127.0.0.1:{port}", **DEPLOYMENT, **settings}
    operator = Operator(place, facts, own)
    operator.install()
    try:
        yield operator, port
    finally:
        operator.stop()


def events(kubectl: Kubectl) -> list[str]:
    """Reasons of the events on the operator's Deployment."""
    found = json.loads(kubectl("get", "events", "-n", "speedrun-system", "-o", "json"))["items"]
    return [each["reason"] for each in found if each["involvedObject"]["kind"] == "Deployment"]


def test_runs_and_a_stale_crd_are_seen_in_a_scrape(bed: Facts, place: Place, kubectl: Kubectl, namespace: str) -> None:
    runs = Speedruns(kubectl, namespace)
    with operator_with_metrics(place, bed, SPEEDRUN_WATCH__RESYNC_SECONDS="5") as (operator, port):
        try:
            kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=stale_crd())
            operator.start()
            runs.apply(quick("done"), slow("live"))
            runs.wait_phase("live", "Training")
            runs.wait_finished("done")
            seen = scrape(port)
            _seen_while_they_run(seen, namespace)

            kubectl("delete", "speedrun", "live", "-n", namespace)
            until("the series of a live one to end", lambda: not series(scrape(port), namespace, "live"), 30)
            assert series(scrape(port), namespace, "done")
            kubectl("delete", "speedrun", "done", "-n", namespace)

            until("the CRD to be found stale", lambda: scrape(port).value("speedrun_operator_crd_stale") == 1)
            until("its event", lambda: "CrdStale" in events(kubectl), 30)
            assert "speedrun-operator crd | kubectl apply" in operator.log.read_text()
            served = {*seen.labels(), *scrape(port).labels()}
            asked = [*(each["expr"] for each in RULES), *queries()]
            assert {each.metric for text in asked for each in used(text).selectors} - served <= LATER
            until("the series of a finished one to end", lambda: not series(scrape(port), namespace, "done"), 40)
        finally:
            kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRD))


def series(found: Scrape, namespace: str, name: str) -> set[str]:
    """The metrics that have a series of this Speedrun."""
    return {
        each.name
        for each in found.samples
        if (each.labels.get("namespace"), each.labels.get("name")) == (namespace, name)
    }


def _seen_while_they_run(found: Scrape, namespace: str) -> None:
    live, done = {"namespace": namespace, "name": "live"}, {"namespace": namespace, "name": "done"}
    assert found.value("speedrun_phase", **live, phase="Training") == 1
    assert found.value("speedrun_condition", **live, type="BackendReachable") == 1
    assert found.value("speedrun_resources", namespace=namespace, phase="Training") == 1
    assert found.value("speedrun_val_loss", **done) == pytest.approx(3.2, abs=0.2)
    assert (found.value("speedrun_train_time_seconds", **done) or 0) > 0
    assert found.value("speedrun_progress_ratio", **done) == 1
    assert found.value("speedrun_queue_time_seconds", **done) is not None
    assert (found.value("speedrun_operator_submissions_total", backend="Slurm", outcome="accepted") or 0) >= 2
    assert (found.value("speedrun_operator_polls_total", backend="Slurm", outcome="answered") or 0) > 0
    assert (found.value("speedrun_operator_remote_command_duration_seconds_count") or 0) > 0
    assert (found.value("speedrun_operator_api_requests_total", api="kubernetes", code="200") or 0) > 0
    assert (found.value("speedrun_operator_loop_lag_seconds_count") or 0) > 0
    for metric in ("login_connected", "watch_running", "crd_installed"):
        assert found.value(f"speedrun_operator_{metric}") == 1, metric


@pytest.mark.full
def test_the_dashboard_shows_a_run(bed: Facts, place: Place, kubectl: Kubectl, namespace: str) -> None:
    runs = Speedruns(kubectl, namespace)
    with operator_with_metrics(place, bed) as (operator, port):
        operator.start()
        runs.apply(quick("done"), slow("live"))
        runs.wait_finished("done")
        scrapes = [_now(port)]
        runs.wait("live", "ten steps on", lambda status: status.get("step", 0) >= 10)
        until("the CRD to be looked at", lambda: scrape(port).value("speedrun_operator_crd_stale") == 0)
        scrapes.append(_now(port))
    answers = prometheus.ask(place, ALERTS, [filled(each) for each in queries()], scrapes)
    shown = dict(zip(queries(), answers.queries, strict=True))
    assert {query: found for query, found in shown.items() if not isinstance(found, int) or not found} == {}


def _now(port: int) -> tuple[int, str]:
    """(milliseconds since the epoch, the page)."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return round(time.time() * 1000), answer.read().decode()


@pytest.mark.full
def test_a_missing_crd_is_waited_for_and_one_that_is_removed_too(tmp_path: Path) -> None:
    place = Place(state=tmp_path / "bed")
    with Bed(place, "kubernetes").hold() as half:
        facts = Facts({"ssh_port": "22", "job_python": "python3", **dict.fromkeys(NO_LOGIN, ""), **half.flat})
        kubectl = Kubectl(facts.kubectl, facts.kubeconfig)
        with operator_with_metrics(place, facts) as (operator, port):
            kubectl("delete", "crd", "speedruns.speedrun.dev")
            operator.start(wait=False)
            until("/metrics to say it", lambda: _installed(port) == 0)
            assert operator.health()["alive"]
            until("its event", lambda: "CrdMissing" in events(kubectl))
            kubectl("apply", "--server-side", "-f", str(CRD))
            operator.wait_ready()
            until("all to be well", lambda: _installed(port) == 1)
            until("Kopf to watch", lambda: scrape(port).value("speedrun_operator_watch_running") == 1)

            kubectl("delete", "crd", "speedruns.speedrun.dev")
            kubectl("apply", "--server-side", "-f", str(CRD))
            runs = Speedruns(kubectl, "default")
            until("it to be served again", lambda: not runs.names())
            runs.apply(quick("after"))
            runs.wait("after", "seen", lambda status: status.get("phase") == "Pending", 90)
            log = operator.log.read_text()
        assert "Traceback" not in log, log


def _installed(port: int) -> float | None:
    try:
        return scrape(port).value("speedrun_operator_crd_installed")
    except OSError:
        return None
