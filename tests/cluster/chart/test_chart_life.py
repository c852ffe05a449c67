"""Upgrades and the end of a release, while a run goes on."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.chart.conftest import NAME, Release
from cluster.speedruns import slow
from cluster.test_main_job import job_names, jobs_ever
from cluster.waiting import until
from testbed.facts import Facts
from testbed.helm import CHART, Loader
from testbed.kubectl import Kubectl
from testbed.kubernetes import Kubernetes
from testbed.part import Place
from testbed.slurm import Slurm

DETACH = re.compile(r"^  (kubectl get speedruns -A .*)$", re.MULTILINE)


@pytest.fixture
def slurm(place: Place) -> Slurm:
    return Slurm(place)


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """A chart of an earlier version, whose CRD lacks fields of status."""
    chart = tmp_path / "speedrun-operator"
    shutil.copytree(CHART, chart)
    file = chart / "crd" / "speedruns.yaml"
    crd = yaml.load(file.read_text(), Loader=Loader)
    for field in ("val_loss", "train_time_ms"):
        del status_of(crd)[field]
    file.write_text(yaml.dump(crd, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper)))
    about = chart / "Chart.yaml"
    about.write_text(re.sub(r"(?m)^(version|appVersion): .*", r"\1: 0.0.9", about.read_text()))
    return chart


def status_of(crd: dict[str, Any]) -> dict[str, Any]:
    """The fields of status, to be read or changed."""
    fields: dict[str, Any] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"][
        "properties"
    ]
    return fields


def served(kubectl: Kubectl) -> dict[str, Any]:
    return status_of(json.loads(kubectl("get", "crd", "speedruns.speedrun.dev", "-o", "json")))


def pod_mark(release: Release) -> str:
    text = release.kubectl("get", "deployment", NAME, "-n", release.home, "-o", "json")
    return str(json.loads(text)["spec"]["template"]["metadata"]["annotations"]["checksum/settings"])


def ours(slurm: Slurm, uid: str) -> list[str]:
    return [each for each in job_names(slurm) if uid in each]


def test_an_upgrade_brings_the_new_crd_and_a_live_run_loses_nothing(
    release: Release, older: Path, kubectl: Kubectl, slurm: Slurm
) -> None:
    """BR-064: the chart upgrades the CRD, so that a new operator's status is not dropped."""
    release.install(chart=older)
    assert "val_loss" not in served(kubectl)
    release.operator.start()
    release.runs.apply(slow("live", 7))
    release.runs.wait_phase("live", "Training")
    mark = pod_mark(release)

    release.values["slurm"]["releaseSeconds"] = 60
    release.install()
    assert "val_loss" in served(kubectl)
    assert pod_mark(release) != mark, "the Deployment would not have made a new pod"
    release.operator.stop()  # Recreate: the old pod ends first
    release.operator.start()

    status = release.runs.wait_finished("live")
    assert (status["phase"], status["val_loss"], status["train_time_ms"]) == ("Succeeded", 3.2782, 371)
    assert [each["id"] for each in status["allocations"]] == [0]
    assert len(jobs_ever(slurm, release.runs.get("live")["metadata"]["uid"])) == 1


def test_an_uninstalled_chart_leaves_crd_speedruns_and_jobs(
    release: Release, bed: Facts, kubectl: Kubectl, slurm: Slurm, tmp_path: Path
) -> None:
    """BR-065: what runs goes on, what is to go can go, and a chart that is installed again picks up the rest."""
    notes = release.install()
    release.operator.start()
    release.runs.apply(slow("stays", 20), slow("goes"))
    uids = {name: release.runs.get(name)["metadata"]["uid"] for name in ("stays", "goes")}
    for name in uids:
        release.runs.wait_phase(name, "Training")

    said = release.uninstall()
    release.operator.stop()
    assert "CustomResourceDefinition" in said, "helm says what it keeps"
    kinds = "deployments,services,roles,rolebindings,configmaps,serviceaccounts"
    assert kubectl("get", kinds, "-n", release.home, "-o", "name", "-l", "app.kubernetes.io/instance=speedrun") == ""
    assert sorted(release.runs.names()) == ["speedrun.speedrun.dev/goes", "speedrun.speedrun.dev/stays"]
    assert all(ours(slurm, uid) for uid in uids.values())

    # What the notes say: without an operator, its finalizer would hold a deletion for ever.
    environment = {"PATH": f"{bed.kubectl.parent}:/usr/bin:/bin", "KUBECONFIG": str(bed.kubeconfig)}
    environment["HOME"] = str(tmp_path)  # kubectl keeps a cache there
    command = DETACH.findall(notes)[0]
    argv = ["bash", "-euo", "pipefail", "-c", command]
    # Another test's Speedrun may go while the command goes through all of them: it then fails, and is given again.
    until(
        "the notes' command to go through",
        lambda: subprocess.run(argv, env=environment, check=False, timeout=60).returncode == 0,
        timeout=60,
    )
    kubectl("delete", "speedrun", "goes", "-n", release.watched, "--timeout=10s")
    assert ours(slurm, uids["goes"])

    release.install()
    release.operator.start()
    status = release.runs.wait_finished("stays")
    assert (status["phase"], len(status["allocations"])) == ("Succeeded", 1)
    assert len(jobs_ever(slurm, uids["stays"])) == 1
    slurm.command("scancel", f"--name={ours(slurm, uids['goes'])[0]}")


def test_uninstalling_with_detach_frees_the_speedruns(
    release: Release, place: Place, kubectl: Kubectl, kubernetes: Kubernetes, slurm: Slurm
) -> None:
    """No node runs the hook's Job here: its command does, with its settings and the account's token."""
    release.values["uninstall"] = {"detach": True}
    release.values["nodeSelector"] = {"kubernetes.io/hostname": "nowhere"}  # also where the bed's node is up
    release.install()
    release.operator.start()
    release.runs.apply(slow("free"))
    release.runs.wait_phase("free", "Training")
    uid = release.runs.get("free")["metadata"]["uid"]
    until("its finalizer", lambda: release.runs.get("free")["metadata"].get("finalizers"))
    create_pod(release)

    helm = [str(release.helm.binary), "uninstall", "speedrun", "-n", release.home]
    with running([*helm, "--kubeconfig", str(kubectl.kubeconfig)]) as uninstall:
        job = until("the hook's Job", lambda: listed(release, "jobs"))[0]
        command = job["spec"]["template"]["spec"]["containers"][0]["command"]
        assert command[0] == "speedrun-operator"
        program = [sys.executable, "-m", "speedrun_operator.cli", *command[1:]]
        with running(program, os.environ | release.operator.environment()) as hook:
            until("the Deployment to be scaled down", lambda: hook.poll() or replicas(kubernetes, release) == 0)
            assert hook.poll() is None, hook.communicate()
            release.operator.stop()
            assert hook.poll() is None, "it waits until the operator's pod is gone"
            assert release.runs.get("free")["metadata"]["finalizers"]
            # Where a node is up it took the pod, which would end in its own time.
            kubectl("delete", "pod", "operator", "-n", release.home, "--grace-period=0", "--force", "--timeout=10s")
            said = hook.communicate(timeout=30)
        assert (said, hook.returncode) == (("the finalizer is off 1 Speedrun; jobs go on\n", ""), 0)
        complete(kubernetes, job)
        said = uninstall.communicate(timeout=60)
        assert uninstall.returncode == 0, said
    assert listed(release, "jobs,roles,deployments") == []
    assert not release.runs.get("free")["metadata"].get("finalizers")
    kubectl("delete", "speedrun", "free", "-n", release.watched, "--timeout=10s")
    assert ours(slurm, uid)
    slurm.command("scancel", f"--name={ours(slurm, uid)[0]}")


@contextmanager
def running(command: list[str], environment: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def listed(release: Release, kinds: str) -> list[dict[str, Any]]:
    return list(json.loads(release.kubectl("get", kinds, "-n", release.home, "-o", "json"))["items"])


def replicas(kubernetes: Kubernetes, release: Release) -> int:
    path = f"/apis/apps/v1/namespaces/{release.home}/deployments/{NAME}"
    return int(json.loads(kubernetes.call("GET", path))["spec"]["replicas"])


def create_pod(release: Release) -> None:
    """A pod of the Deployment's that takes its time to end: its own is on no node here, and goes at once."""
    template = listed(release, "deployments")[0]["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": template["metadata"] | {"name": "operator"}}
    release.kubectl("create", "-n", release.home, "-f", "-", stdin=json.dumps(pod | {"spec": template["spec"]}))


def complete(kubernetes: Kubernetes, job: dict[str, Any]) -> None:
    """Say that a Job's pod is done, as its kubelet would."""
    where = f"/api/v1/namespaces/{job['metadata']['namespace']}/pods"
    selector = f"batch.kubernetes.io/job-name={job['metadata']['name']}"
    [pod] = json.loads(kubernetes.call("GET", f"{where}?labelSelector={selector}"))["items"]
    body = {"status": {"phase": "Succeeded"}}
    path = f"{where}/{pod['metadata']['name']}/status"
    kubernetes.call("PATCH", path, body, content_type="application/merge-patch+json")
