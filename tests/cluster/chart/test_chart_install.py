"""The chart in a real API server: installed, upgraded and uninstalled, with a run going on all the while."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from cluster.chart.conftest import NAME, Release
from cluster.speedruns import quick, slow
from testbed.helm import CHART, Loader
from testbed.kubectl import Kubectl, KubectlFailed
from testbed.kubernetes import Kubernetes
from testbed.part import Place
from testbed.slurm import Slurm

FORBIDDEN = re.compile(r'^apiserver_request_total\{.*code="403".*\} \d+$', re.MULTILINE)
ASKED = re.compile(r'resource="(speedruns|secrets|namespaces|customresourcedefinitions|deployments)"')
EVERYTHING = {
    "pods": {"enabled": True},
    "rbac": {"nodes": True, "tokenReview": True},
    "uninstall": {"detach": True},
    "networkPolicy": {"enabled": True, "login": {"namespaces": ["tenant-slurm"]}},
    "podDisruptionBudget": {"enabled": True},
}


@pytest.fixture
def slurm(place: Place) -> Slurm:
    return Slurm(place)


def forbidden(kubernetes: Kubernetes) -> list[str]:
    """The API server's counts of requests that it has answered with 403, by what was asked.

    Only what the operator asks for: Kubernetes' own controllers are refused much in a namespace that is going, be it a
    ConfigMap or an event.
    """
    counts = FORBIDDEN.findall(kubernetes.call("GET", "/metrics", timeout=20).decode())
    read = [each for each in counts if 'resource="configmaps"' in each and 'verb="GET"' in each]
    return [each for each in counts if ASKED.search(each)] + read


def test_the_api_server_takes_all_of_it(release: Release, kubectl: Kubectl) -> None:
    """A server-side dry run of all that the chart can render but what needs the Prometheus operator's CRDs; and of
    the pod, in a namespace that takes restricted pods only."""
    values = release.values | EVERYTHING
    objects = release.helm.template(values, "--include-crds", namespace=release.home)
    crd = [each for each in yaml.load_all((CHART / "crd" / "speedruns.yaml").read_text(), Loader=Loader) if each]
    kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=yaml.safe_dump_all(crd))
    said = kubectl("apply", "--server-side", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump_all(objects))
    assert len(said.splitlines()) == len(objects) > 15
    kubectl("label", "namespace", release.home, "pod-security.kubernetes.io/enforce=restricted")
    kubectl("create", "serviceaccount", NAME, "-n", release.home)
    kinds = {each["kind"]: each for each in objects if each["kind"] in ("Deployment", "Job")}
    for each in kinds.values():
        pod = {"apiVersion": "v1", "kind": "Pod", "spec": each["spec"]["template"]["spec"]}
        pod["metadata"] = {"name": "restricted", "namespace": release.home}
        kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(pod))
    spoiled = {**pod, "spec": pod["spec"] | {"hostNetwork": True}}
    with pytest.raises(KubectlFailed, match="violates PodSecurity"):
        kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(spoiled))


def test_a_run_needs_no_right_that_the_chart_does_not_give(
    release: Release, kubectl: Kubectl, kubernetes: Kubernetes, slurm: Slurm
) -> None:
    """BR-068: in one namespace, with a Role there: no request is refused, and a run goes to its end."""
    notes = release.install()
    commands = [line.strip() for line in notes.splitlines() if line.startswith("  kubectl")]
    assert commands[0] == f"kubectl rollout status deployment/{NAME} -n {release.home}"
    assert commands[1] == f"kubectl exec deployment/{NAME} -n {release.home} -- speedrun-operator check"
    assert commands[2].startswith(f"kubectl create -n {release.watched} ")
    before = forbidden(kubernetes)
    release.operator.start()
    release.runs.apply(quick("one") | {"spec": quick("one")["spec"] | {"ttlSecondsAfterFinished": 1}})
    status = release.runs.wait_finished("one")
    assert (status["phase"], status["val_loss"]) == ("Succeeded", 3.2782)
    reached = ("Normal", "TargetReached", "val_loss 3.2782: target 3.28 reached")
    release.runs.wait_event("one", lambda each: each == reached)
    release.runs.wait_gone("one")
    release.runs.apply(slow("two"))
    release.runs.wait_phase("two", "Training")
    kubectl("delete", "speedrun", "two", "-n", release.watched, "--timeout=30s")
    log = release.operator.log.read_text()
    assert "orbidden" not in log and "Traceback" not in log, log
    assert forbidden(kubernetes) == before, "the API server refused a request"


def test_the_account_may_not_do_more(release: Release, kubernetes: Kubernetes) -> None:
    release.install()
    account = f"system:serviceaccount:{release.home}:{NAME}"
    speedruns, watched = ("speedrun.dev", "speedruns", ""), release.watched
    allowed = [
        ("watch", *speedruns, watched, ""),
        ("patch", "speedrun.dev", "speedruns", "status", watched, ""),
        ("get", "", "secrets", "", watched, "any"),
        ("create", "", "events", "", watched, ""),
        ("create", "", "events", "", release.home, ""),
        ("get", "", "namespaces", "", "kube-system", "kube-system"),
    ]
    refused = [
        ("list", "", "secrets", "", watched, ""),
        ("get", "", "secrets", "", release.home, "login"),
        ("get", "", "pods", "", watched, ""),
        ("create", *speedruns, watched, ""),
        ("update", *speedruns, watched, ""),
        ("get", *speedruns, "default", ""),
        ("list", *speedruns, "", ""),
        ("list", "", "namespaces", "", "", ""),
        ("get", "", "namespaces", "", "default", "default"),
        ("get", "", "secrets", "", "kube-system", ""),
        ("list", "apiextensions.k8s.io", "customresourcedefinitions", "", "", ""),
        ("list", "kopf.dev", "kopfpeerings", "", watched, ""),
        ("list", "", "nodes", "", "", ""),
        ("create", "authentication.k8s.io", "tokenreviews", "", "", ""),
        ("update", "apps", "deployments", "", release.home, NAME),
    ]
    answers = [may(kubernetes, account, *words) for words in allowed + refused]
    assert [words for words, yes in zip(allowed + refused, answers, strict=True) if yes] == allowed


def may(
    kubernetes: Kubernetes, account: str, verb: str, group: str, resource: str, subresource: str, where: str, name: str
) -> bool:
    """What the API server answers to `kubectl auth can-i`."""
    attributes = {"verb": verb, "group": group, "resource": resource, "subresource": subresource}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": account,
            "groups": ["system:serviceaccounts", "system:authenticated"],
            "resourceAttributes": attributes | {"namespace": where, "name": name},
        },
    }
    answer = kubernetes.call("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return bool(json.loads(answer)["status"]["allowed"])
