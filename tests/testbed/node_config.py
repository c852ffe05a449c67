"""What the bed's node is configured with: containerd, CNI, kubelet, and the room that they live in."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.image import PAUSE

PODS = "10.244.0.0/24"  # only inside the node's own network
KUBELET_PORT = 10250
GPUS = 8
LABELS = {
    "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
    "node.kubernetes.io/instance-type": "gd-8xh100ib-i128",
}
# What a kubelet would set on the machine; it finds them set, as files of its own mount namespace.
SYSCTLS = {
    "kernel/keys/root_maxbytes": "25000000",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
}


@dataclass(frozen=True)
class Layout:
    """Where the node's things are. `cache` is the directory behind the cache volume."""

    directory: Path
    name: str = "slurm-h100-0"

    @property
    def digest(self) -> str:
        return hashlib.sha256(str(self.directory).encode()).hexdigest()[:6]

    @property
    def addresses(self) -> tuple[str, str]:
        """This machine's end of the cable and the node's: this bed's own. A kubelet takes no link-local one."""
        low, high = int(self.digest[:2], 16), int(self.digest[2:4], 16) & ~3
        return f"10.88.{low}.{high + 1}", f"10.88.{low}.{high + 2}"

    @property
    def cgroup(self) -> str:
        return f"srbed-{self.digest}"

    @property
    def socket(self) -> Path:
        return self.directory / "containerd.sock"

    @property
    def cache(self) -> Path:
        return self.directory / "cache"


def room(layout: Layout, python: Path) -> str:
    """The script that furnishes the node's mount namespace, then sleeps as the first process of its pid namespace.

    `python` is the root of the interpreter with torch: the cache volume shows it as `python`.
    """
    lines = [
        "set -e",
        "mount --make-rshared /",
        "mkdir -p /run/containerd && mount -t tmpfs tmpfs /run/containerd",
        f"mkdir -p {layout.cache}/python && mount --bind {python} {layout.cache}/python",
        f"mount -o remount,bind,ro {layout.cache}/python",
    ]
    for name, value in SYSCTLS.items():
        file = layout.directory / "sysctls" / name.replace("/", ".")
        lines += [f"mkdir -p {file.parent}", f"echo {value} >{file}", f"mount --bind {file} /proc/sys/{name}"]
    # Children of it that end are not waited for: the kernel does.
    lines += ["ip link set lo up", f"touch {layout.directory}/furnished", "trap '' CHLD", "exec sleep infinity"]
    return "\n".join(lines)


def containerd(layout: Layout) -> str:
    """containerd's config.toml."""
    home = layout.directory / "containerd"
    return f"""
version = 2
root = "{home}/root"
state = "{home}/state"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.tracing.processor.v1.otlp"]
[grpc]
address = "{layout.socket}"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE}"
disable_apparmor = true
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "overlayfs"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{layout.directory}/cni"
"""


def cni(layout: Layout) -> dict[str, Any]:
    """A bridge without a way out: pods reach each other and the node."""
    return {
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "cni0",
                "isGateway": True,
                "ipMasq": False,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": PODS}]],
                    "dataDir": f"{layout.directory}/cni-leases",
                },
            }
        ],
    }


def kubelet(layout: Layout, authority: Path) -> str:
    """The KubeletConfiguration."""
    return json.dumps({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": layout.addresses[1],
        "port": KUBELET_PORT,
        "readOnlyPort": 0,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": False},
            "x509": {"clientCAFile": str(authority)},
        },
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{layout.cgroup}",
        "containerRuntimeEndpoint": f"unix://{layout.socket}",
        "failSwapOn": False,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        # Of its own: a kubelet removes the logs of every pod that it does not know, another bed's too.
        "podLogsDir": str(layout.directory / "pod-logs"),
        "nodeStatusUpdateFrequency": "2s",
        "nodeStatusReportFrequency": "20s",
        "nodeLeaseDurationSeconds": 8,
        "protectKernelDefaults": True,
        "resolvConf": "",
        "syncFrequency": "10s",
        "volumeStatsAggPeriod": "0s",
        "logging": {"verbosity": 2},
    })  # fmt: skip
