"""The root of the node's cgroups, in every hierarchy of cgroup v1 that the machine has."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from testbed.processes import wait_for

CGROUPS = Path("/sys/fs/cgroup")


def make(name: str) -> None:
    """Make it, as the kubelet wants to find it."""
    for hierarchy in CGROUPS.glob("*"):
        if not (hierarchy / "cgroup.procs").exists() or (hierarchy / "cgroup.controllers").exists():
            continue
        root = hierarchy / name
        root.mkdir(exist_ok=True)
        for setting in ("cpuset.cpus", "cpuset.mems"):
            if (hierarchy / setting).exists():
                (root / setting).write_text((hierarchy / setting).read_text())


def remove(name: str) -> None:
    """Remove it with those of the pods that were ended. A kernel takes a moment to let go of one."""
    for root in CGROUPS.glob(f"*/{name}"):
        for path, _, _ in os.walk(root, topdown=False):
            wait_for(f"{path} to be empty", partial(_removed, Path(path)), timeout=10)


def _removed(path: Path) -> bool:
    try:
        path.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
