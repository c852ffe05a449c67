"""The bed's Kubernetes node: containerd, runc, kube-scheduler and a kubelet, in namespaces of their own.

Network, mounts and pids of the node are apart from the machine's: a veth pair joins the two, a relay at its end takes
the kubelet to the API server and what runs there to sshd, and all ends with the first process of the pid namespace.
Not started with the bed, which most tests use without it: `start` does, and the bed takes it down.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from testbed import cgroups, image, node_config, pki
from testbed.facts import Facts
from testbed.kubernetes import ApiError, Kubernetes
from testbed.part import Place
from testbed.ports import read_ports
from testbed.processes import StartFailed, start_ticks, wait_for
from testbed.tools import Toolbox

PARTS = ("node-room", "node-relay", "containerd", "kube-scheduler", "kubelet")
READY_SECONDS = 60
GPU = "nvidia.com/gpu"
CLAIM = "speedrun-cache"


class Node:
    """See the module."""

    name = "node"

    def __init__(self, place: Place) -> None:
        self.place = place
        self.layout = node_config.Layout(place.state / "node")
        self.kubernetes = Kubernetes(place)

    # ---- the part

    def up(self) -> dict[str, str]:
        """Starts nothing: see `start`."""
        return {}

    def start(self, facts: Facts) -> None:
        """Bring the node up, if it is not, until pods can run on it. Raises StartFailed."""
        if self.ready():
            return
        began = time.monotonic()
        self.down()
        tools = Toolbox(self.place).ensure(("kube-scheduler", "kubelet"))
        archive = image.archive(self.place)
        directory = self.layout.directory
        directory.mkdir(parents=True)
        self.layout.cache.mkdir()
        self.layout.cache.chmod(0o1777)
        (directory / "tools.json").write_text(json.dumps({name: str(path) for name, path in tools.items()}))
        self._write_config()
        cgroups.make(self.layout.cgroup)
        self._make_room(facts)
        self.start_part("node-relay")
        self.start_part("containerd")
        self._ready("containerd", self.layout.socket.exists)
        self.load(archive)
        self.start_part("kube-scheduler")
        self.start_part("kubelet")
        self._ready("kubelet", self.ready)
        self.advertise_gpus()
        self._ready("kubelet", self.has_gpus)
        self.place.say(f"node: ready after {time.monotonic() - began:.1f} s")

    def down(self) -> None:
        """End everything that runs there, and remove what it left."""
        for name in reversed(PARTS):
            self.kill_part(name)
        cgroups.remove(self.layout.cgroup)
        shutil.rmtree(self.layout.directory, ignore_errors=True)

    # ---- its parts, one by one

    def start_part(self, name: str) -> None:
        log = self.place.logs / f"{name}.log"
        self.place.processes.start(name, self._argv(name), log=log, env={"TMPDIR": "/tmp"})

    def kill_part(self, name: str) -> None:
        """SIGKILL what runs, not only what entered the namespaces for it."""
        inner = self._inner(name)
        if inner is not None:
            os.kill(inner, signal.SIGKILL)
            ticks = start_ticks(inner)
            wait_for(f"{name} to end", lambda: ticks is None or start_ticks(inner) != ticks, timeout=10)
        self.place.processes.kill(name)

    def pause_part(self, name: str) -> None:
        if (inner := self._inner(name)) is not None:
            os.kill(inner, signal.SIGSTOP)

    def resume_part(self, name: str) -> None:
        if (inner := self._inner(name)) is not None:
            os.kill(inner, signal.SIGCONT)

    def heal(self) -> None:
        """Every part runs, and the node is ready and not cordoned."""
        for name in PARTS[1:]:
            self.resume_part(name)
            if not self.place.processes.alive(name):
                self.start_part(name)
        self._patch(f"/api/v1/nodes/{self.layout.name}", {"spec": {"unschedulable": None}})
        self._ready("kubelet", self.ready)
        if not self.has_gpus():
            self.advertise_gpus()
            self._ready("kubelet", self.has_gpus)

    # ---- questions

    def ready(self) -> bool:
        """Whether the API server calls the node ready, and no taint keeps pods away."""
        node = self._node()
        conditions = node.get("status", {}).get("conditions", [])
        good = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
        return good and not node.get("spec", {}).get("taints")

    def has_gpus(self) -> bool:
        return self._node().get("status", {}).get("allocatable", {}).get(GPU) == str(node_config.GPUS)

    def advertise_gpus(self) -> None:
        """The node's GPUs, as a device plugin would have the kubelet say."""
        self._patch(f"/api/v1/nodes/{self.layout.name}/status", {"status": {"capacity": {GPU: str(node_config.GPUS)}}})

    def claim(self, namespace: str, claim: str = CLAIM, path: Path | None = None) -> None:
        """A volume over the node's cache directory, or over `path`, which must be there, and a claim on it."""
        name = f"{claim}-{namespace}"
        size = {"storage": "10Gi"}
        self.kubernetes.call("POST", "/api/v1/persistentvolumes", {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": {
                "capacity": size,
                "accessModes": ["ReadWriteMany"],
                "storageClassName": "",
                "hostPath": {"path": str(path or self.layout.cache), "type": "Directory"},
                "claimRef": {"namespace": namespace, "name": claim},
            },
        })  # fmt: skip
        self.kubernetes.call("POST", f"/api/v1/namespaces/{namespace}/persistentvolumeclaims", {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": claim},
            "spec": {
                "accessModes": ["ReadWriteMany"],
                "storageClassName": "",
                "volumeName": name,
                "resources": {"requests": size},
            },
        })  # fmt: skip

    def containers(self, *arguments: str) -> str:
        """`ctr` in containerd's namespace of Kubernetes' containers."""
        argv = [*self._inside("containerd"), "ctr", "-a", str(self.layout.socket), "-n", "k8s.io", *arguments]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode != 0:
            raise StartFailed("containerd", f"ctr {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def load(self, archive: Path) -> None:
        """Take the images of an archive, so that pods find them without a registry."""
        self.containers("image", "import", str(archive))

    def _node(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self.kubernetes.call("GET", f"/api/v1/nodes/{self.layout.name}")))
        except (OSError, http.client.HTTPException, ApiError):
            return {}

    # ---- how it is made

    def _write_config(self) -> None:
        directory, config = self.layout.directory, node_config
        (directory / "cni").mkdir()
        (directory / "cni" / "10-pods.conflist").write_text(json.dumps(config.cni(self.layout)))
        (directory / "containerd.toml").write_text(config.containerd(self.layout))
        (directory / "kubelet.json").write_text(config.kubelet(self.layout, self.kubernetes.pki / "ca.crt"))
        for user in ("kubelet", "scheduler"):
            server = self.kubernetes.url("kube-apiserver")
            if user == "kubelet":
                server = f"https://{self.layout.addresses[0]}:{self._api_port}"
            pki.kubeconfig(
                directory / f"{user}.kubeconfig",
                server=server,
                authority=self.kubernetes.pki / "ca.crt",
                user=pki.certificate_user(self.kubernetes.pki, user),
            )

    def _make_room(self, facts: Facts) -> None:
        script = node_config.room(self.layout, facts.job_python.parents[1])
        argv = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", script]
        self.place.processes.start("node-room", argv, log=self.place.logs / "node-room.log")
        self._ready("node-room", (self.layout.directory / "furnished").exists)
        here, there = self.layout.addresses
        inner = self._inner("node-room")
        assert inner is not None
        outside, cable = f"srbed{self.layout.digest}", str(inner)
        self._run("ip", "link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", cable)
        self._run("ip", "address", "add", f"{here}/30", "dev", outside)
        self._run("ip", "link", "set", outside, "up")
        for command in (
            ("ip", "address", "add", f"{there}/30", "dev", "eth0"),
            ("ip", "link", "set", "eth0", "up"),
            ("ip", "route", "add", "default", "via", here),
        ):
            self._run("nsenter", "-t", cable, "-n", *command)

    def _argv(self, name: str) -> list[str]:
        directory = self.layout.directory
        tools = json.loads((directory / "tools.json").read_text())
        scheduler = directory / "scheduler.kubeconfig"
        return {
            "node-relay": [sys.executable, "-m", "testbed.node_relay", self.layout.addresses[0], *self._relayed()],
            "containerd": [*self._inside(), "containerd", "-c", f"{directory}/containerd.toml"],
            "kube-scheduler": [
                tools["kube-scheduler"],
                f"--kubeconfig={scheduler}",
                f"--authentication-kubeconfig={scheduler}",
                f"--authorization-kubeconfig={scheduler}",
                "--leader-elect=false",
                "--secure-port=0",
            ],
            "kubelet": [
                *self._inside(),
                tools["kubelet"],
                f"--config={directory}/kubelet.json",
                f"--kubeconfig={directory}/kubelet.kubeconfig",
                f"--root-dir={directory}/kubelet",
                f"--cert-dir={directory}/kubelet-pki",
                f"--hostname-override={self.layout.name}",
                f"--node-ip={self.layout.addresses[1]}",
                "--node-labels=" + ",".join(f"{key}={value}" for key, value in node_config.LABELS.items()),
            ],
        }[name]

    def _inside(self, name: str = "node-room") -> list[str]:
        inner = self._inner("node-room")
        if inner is None:
            raise StartFailed(name, "the node's namespaces are gone")
        return ["nsenter", "-t", str(inner), "-n", "-m", "-p", "--"]

    def _inner(self, name: str) -> int | None:
        """The process that the recorded one runs for us: the only child of unshare and nsenter; itself otherwise."""
        proc = self.place.processes.get(name)
        if proc is None or not self.place.processes.alive(name):
            return None
        if name in ("node-relay", "kube-scheduler"):
            return proc.pid
        children = Path(f"/proc/{proc.pid}/task/{proc.pid}/children").read_text().split()
        return int(children[0]) if children else None

    @property
    def _api_port(self) -> int:
        return int(self.kubernetes.url("kube-apiserver").rpartition(":")[2])

    def _relayed(self) -> list[str]:
        """Ports of this machine's loopback that the node reaches: the API server's and, where a login is up, sshd's."""
        ssh = self.place.state / "login" / "ports.json"
        return [str(self._api_port), *(str(port) for port in (read_ports(ssh).values() if ssh.exists() else ()))]

    def _ready(self, name: str, condition: Callable[[], bool]) -> None:
        self.place.processes.ready(name, condition, timeout=READY_SECONDS)

    def _patch(self, path: str, body: dict[str, Any]) -> None:
        self.kubernetes.call("PATCH", path, body, content_type="application/merge-patch+json")

    def _run(self, *argv: str) -> None:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise StartFailed("node", f"`{' '.join(argv)}` failed: {done.stderr.strip()}")
