"""The chart as its README says, on a node: helm installs it, the kubelet runs the image, and a run goes on meanwhile.

The node has no network of pods, so the chart's pods are given the node's own; and no kube-proxy, so the API server is
named to them.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.chart.conftest import NAME, Release, made
from cluster.speedruns import slow
from cluster.test_main_job import job_names, jobs_ever
from testbed.builds import Builder
from testbed.facts import Facts
from testbed.helm import CHART, Helm
from testbed.kubectl import Kubectl
from testbed.node import Node
from testbed.part import Place
from testbed.slurm import Slurm

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart with its pods in the node's own network."""
    chart = tmp_path_factory.mktemp("chart") / "speedrun-operator"
    shutil.copytree(CHART, chart)
    helpers = chart / "templates" / "_helpers.tpl"
    text = helpers.read_text()
    assert text.count("enableServiceLinks: false\n") == 1
    helpers.write_text(text.replace("enableServiceLinks: false\n", "enableServiceLinks: false\nhostNetwork: true\n"))
    return chart


@pytest.fixture
def release(bed: Facts, place: Place, started_node: Node, kubectl: Kubectl) -> Iterator[Release]:
    """Not installed yet; its image is on the node, and its Secret has the host keys of the login as the node has it."""
    builder = Builder(place)
    started_node.load(builder.archive("operator"))
    repository, _, tag = builder.name("operator").partition(":")
    host = started_node.layout.addresses[0]
    with made(bed, place, Helm(place, bed.kubeconfig), kubectl) as release:
        _, kind, key = bed.ssh_known_hosts.read_text().split()[:3]
        known = {"known_hosts": f"[{host}]:{bed.ssh_port} {kind} {key}\n"}
        patch = json.dumps({"stringData": known})
        kubectl("patch", "secret", "login", "-n", release.home, "--type=merge", "-p", patch)
        api = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": bed.api_url.rpartition(":")[2]}
        release.values["image"] = {"repository": repository, "tag": tag, "pullPolicy": "Never"}
        release.values["extraEnv"] = [{"name": name, "value": value} for name, value in api.items()]
        release.values["login"]["host"] = host
        release.values["uninstall"] = {"detach": True}
        yield release


def install(release: Release, chart: Path) -> str:
    flags = ("--take-ownership", "--wait", "--timeout=120s")
    return release.helm.install(release.values, *flags, namespace=release.home, chart=chart)


def pods(release: Release) -> list[dict[str, Any]]:
    found = json.loads(release.kubectl("get", "pods", "-n", release.home, "-o", "json"))["items"]
    return [each for each in found if each["status"]["phase"] == "Running"]


def test_installed_upgraded_and_uninstalled_on_a_node(
    release: Release, chart: Path, bed: Facts, place: Place, kubectl: Kubectl, tmp_path: Path
) -> None:
    slurm = Slurm(place)
    notes = install(release, chart)
    environment = {"PATH": f"{bed.kubectl.parent}:/usr/bin:/bin", "KUBECONFIG": str(bed.kubeconfig)}
    rollout, check, first = re.findall(r"^  (kubectl .*)$", notes, re.MULTILINE)
    for command in (rollout, check, first.replace("&& kubectl get speedruns", "&& : ")):
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            env=environment | {"HOME": str(tmp_path)}, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        print(done.stdout)
    assert release.runs.wait_finished("first", timeout=120)["phase"] == "Succeeded"
    [before] = pods(release)
    assert before["spec"]["containers"][0]["securityContext"]["readOnlyRootFilesystem"]

    release.runs.apply(slow("live", 40), slow("free", 300))
    for name in ("live", "free"):
        release.runs.wait_phase(name, "Training", timeout=120)
    release.values["slurm"]["releaseSeconds"] = 60
    install(release, chart)
    [after] = pods(release)
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    status = release.runs.wait_finished("live", timeout=180)
    assert (status["phase"], len(status["allocations"])) == ("Succeeded", 1)
    assert len(jobs_ever(slurm, release.runs.get("live")["metadata"]["uid"])) == 1
    log = kubectl("logs", f"deployment/{NAME}", "-n", release.home)
    assert "orbidden" not in log and "Traceback" not in log, log

    uid = release.runs.get("free")["metadata"]["uid"]
    release.uninstall("--wait", "--timeout=120s")
    assert pods(release) == []
    assert not release.runs.get("free")["metadata"].get("finalizers")
    jobs = [each for each in job_names(slurm) if uid in each]
    assert len(jobs) == 1, "its job goes on"
    slurm.command("scancel", f"--name={jobs[0]}")
