"""Each right that the chart gives is needed: without it the API server refuses something, and a thing breaks by it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from cluster.chart.conftest import NAME, Release, made
from cluster.speedruns import Speedruns, condition, quick, speedrun
from cluster.stale import stale_crd
from cluster.waiting import until
from testbed.facts import Facts
from testbed.helm import Helm, of_kind
from testbed.kubectl import Kubectl
from testbed.kubernetes import Kubernetes
from testbed.operator import CRD
from testbed.part import Place

pytestmark = pytest.mark.full
ROLES = "/apis/rbac.authorization.k8s.io/v1/namespaces"

# Rights that are for the history that a monitor keeps: nothing breaks without them, yet.
# A ConfigMap is made with Pods alone: it keeps the log of one that has no volume.
NOT_USED_YET = {
    ("watched", "speedruns/status", "get"),
    ("watched", "configmaps", "create"),
    ("watched", "configmaps", "patch"),
}


@pytest.fixture(scope="module")
def release(bed: Facts, place: Place, helm: Helm, kubectl: Kubectl) -> Iterator[Release]:
    """Installed once; the operator is started by each test."""
    with made(bed, place, helm, kubectl) as release:
        release.values["watch"]["resyncSeconds"] = 5
        release.values["policy"] = {"foreignSources": True}
        release.install()
        yield release


@pytest.fixture(autouse=True)
def ended(release: Release) -> Iterator[None]:
    yield
    release.operator.kill()  # first: with its right back it may post once more
    release.kubectl("delete", "events", "--all", "-n", release.home)
    release.operator.log.unlink(missing_ok=True)


class Without:
    """The release's operator with one right less."""

    def __init__(self, release: Release, kubernetes: Kubernetes) -> None:
        self.release = release
        self.runs: Speedruns = release.runs
        self._kubernetes = kubernetes

    @contextmanager
    def right(self, where: str, resource: str, verb: str) -> Iterator[None]:
        """`where`: watched, home or kube-system."""
        namespace = {"watched": self.release.watched, "home": self.release.home}.get(where, where)
        name = NAME if where == "home" else f"{self.release.home}:{NAME}"
        path = f"{ROLES}/{namespace}/roles/{name}"
        role = json.loads(self._kubernetes.call("GET", path))
        rules = [each | {"verbs": [v for v in each["verbs"] if v != verb]} for each in role["rules"]]
        kept = [new if resource in new["resources"] else old for new, old in zip(rules, role["rules"], strict=True)]
        self._put(path, [each for each in kept if each["verbs"]])
        try:
            yield
        finally:
            self._put(path, role["rules"])

    def _put(self, path: str, rules: list[Any]) -> None:
        self._kubernetes.call("PATCH", path, {"rules": rules}, content_type="application/merge-patch+json")

    def refused(self, verb: str, resource: str) -> None:
        """Wait until the operator's log has the API server's refusal."""
        sign = re.compile(rf"cannot {verb} resource \\*\"{resource}\\*\"")
        log = self.release.operator.log
        until(f"{verb} {resource} to be refused", lambda: log.exists() and sign.search(log.read_text()), timeout=60)


@pytest.fixture
def without(release: Release, kubernetes: Kubernetes) -> Without:
    return Without(release, kubernetes)


# What breaks ------------------------------------------------------------------------------------------------------


def a_run_is_not_submitted(it: Without, verb: str, resource: str) -> None:
    it.release.operator.start(wait=False)
    name = f"never-{verb}"
    it.runs.apply(quick(name))
    it.refused(verb, resource)
    assert "job" not in it.runs.status(name)


def it_does_not_say_a_phase(it: Without, verb: str, resource: str) -> None:
    it.release.operator.start()
    it.runs.apply(quick("silent"))
    it.refused(verb, resource)
    assert it.runs.status("silent") == {}


def a_finished_run_stays(it: Without, verb: str, resource: str) -> None:
    it.release.operator.start()
    name = f"old-{verb}"
    it.runs.apply(quick(name) | {"spec": quick(name)["spec"] | {"ttlSecondsAfterFinished": 0}})
    it.runs.wait_finished(name)
    it.refused(verb, resource)
    assert it.runs.get(name)


def there_are_no_events(it: Without, verb: str, resource: str) -> None:
    it.release.operator.start()
    it.runs.apply(quick("quiet"))
    it.runs.wait_finished("quiet")
    it.refused(verb, resource)
    assert it.runs.events("quiet") == []


def what_happens_again_is_not_counted(it: Without, verb: str, resource: str) -> None:
    it.release.operator.start()
    it.runs.apply(quick("again") | {"spec": quick("again")["spec"] | {"suspend": True}})
    for suspend in ("false", "true", "false", "true"):
        patch = f'{{"spec": {{"suspend": {suspend}}}}}'
        it.runs.kubectl("patch", "speedrun", "again", "-n", it.runs.namespace, "--type=merge", "-p", patch)
        it.runs.wait(
            "again", "as asked", lambda status, s=suspend: (status.get("phase") == "Suspended") == (s == "true")
        )
    it.refused(verb, resource)


def a_secret_is_not_found(it: Without, verb: str, resource: str) -> None:
    it.release.operator.start()
    reference = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "token", "key": "token"}}}
    it.runs.apply(quick("secret") | {"spec": quick("secret")["spec"] | {"env": [reference]}})
    status = it.runs.wait("secret", "waiting", lambda each: condition(each, "Admitted").get("status") == "False")
    assert "grant its account `get` on secrets there" in condition(status, "Admitted")["message"]


def a_patch_is_not_found(it: Without, verb: str, resource: str) -> None:
    it.release.operator.start()
    patch = {"patch": {"configMapRef": {"name": "patch", "key": "diff"}}}
    run = speedrun("patched", "modded-nanogpt")
    run["spec"]["recipe"]["source"] = patch
    it.runs.apply(run)
    status = it.runs.wait("patched", "waiting", lambda each: condition(each, "Admitted").get("status") == "False")
    assert "grant its account `get` on configmaps there" in condition(status, "Admitted")["message"]


def it_does_not_start(it: Without, verb: str, resource: str) -> None:
    it.release.operator.start(wait=False)
    it.refused(verb, resource)
    assert not it.release.operator.health()["working"]


def an_old_crd_is_not_said_on_the_deployment(it: Without, verb: str, resource: str) -> None:
    with older_crd(it.release):
        it.release.operator.start()
        it.refused(verb, resource)
        assert told(it.release) == []


def an_old_crd_that_is_said_again_is_not_counted(it: Without, verb: str, resource: str) -> None:
    with older_crd(it.release):
        it.release.operator.start()
        until("the old CRD to be said", lambda: told(it.release))
        it.release.operator.stop()
        it.release.operator.start()
        it.refused(verb, resource)
        assert [each["count"] for each in told(it.release)] == [1]


def an_old_crd_is_not_shown_with_the_deployment(it: Without, verb: str, resource: str) -> None:
    with older_crd(it.release):
        it.release.operator.start()
        until("the old CRD to be said", lambda: told(it.release))
        it.refused(verb, resource)
        describe = ("describe", "deployment", NAME, "-n", it.release.home)
        assert "CrdStale" not in it.runs.kubectl(*describe)


def told(release: Release) -> list[dict[str, Any]]:
    """Events on the operator's Deployment."""
    found = json.loads(release.kubectl("get", "events", "-n", release.home, "-o", "json"))["items"]
    return [each for each in found if each["involvedObject"]["kind"] == "Deployment" and each["reason"] == "CrdStale"]


@contextmanager
def older_crd(release: Release) -> Iterator[None]:
    apply = ("apply", "--server-side", "--force-conflicts", "-f", "-")
    release.kubectl(*apply, stdin=stale_crd())
    try:
        yield
    finally:
        release.kubectl(*apply, stdin=CRD.read_text())


BREAKS: dict[tuple[str, str, str], Callable[[Without, str, str], None]] = {
    ("watched", "speedruns", "get"): a_finished_run_stays,
    ("watched", "speedruns", "list"): a_run_is_not_submitted,
    ("watched", "speedruns", "watch"): a_run_is_not_submitted,
    ("watched", "speedruns", "patch"): a_run_is_not_submitted,
    ("watched", "speedruns", "delete"): a_finished_run_stays,
    ("watched", "speedruns/status", "patch"): it_does_not_say_a_phase,
    ("watched", "events", "create"): there_are_no_events,
    ("watched", "events", "patch"): what_happens_again_is_not_counted,
    ("watched", "configmaps", "get"): a_patch_is_not_found,
    ("watched", "secrets", "get"): a_secret_is_not_found,
    ("kube-system", "namespaces", "get"): it_does_not_start,
    ("home", "deployments", "get"): an_old_crd_is_not_shown_with_the_deployment,
    ("home", "events", "create"): an_old_crd_is_not_said_on_the_deployment,
    ("home", "events", "patch"): an_old_crd_that_is_said_again_is_not_counted,
}


@pytest.mark.parametrize(("where", "resource", "verb"), BREAKS, ids=[" ".join(each) for each in BREAKS])
def test_without_a_right_something_breaks(where: str, resource: str, verb: str, without: Without) -> None:
    with without.right(where, resource, verb):
        BREAKS[where, resource, verb](without, verb, resource)


def test_every_right_is_among_them(release: Release) -> None:
    given = set()
    for role in of_kind(release.helm.template(release.values, namespace=release.home), "Role", "ClusterRole"):
        place = role["metadata"]["namespace"]
        where = {release.watched: "watched", release.home: "home"}.get(place, place)
        given |= {(where, what, verb) for rule in role["rules"] for what in rule["resources"] for verb in rule["verbs"]}
    assert given == set(BREAKS) | NOT_USED_YET
