"""What a GPU job does first: it looks at the GPUs, notes their driver for later plans, ends if that is too old.

The driver is known on the nodes only: there is no nvidia-smi on the login node. Where there is none on the node either,
nothing is known, and the program finds out by itself.
"""

from __future__ import annotations

from speedrun_operator.planning import RunPlan

NODES = ".cache/nodes"  # below the root: a file a node, with a line of its GPUs' name and driver

_LOOK = r"""
look_at_gpus() {
  local said driver place="$root/NODES" node=${SLURMD_NODENAME:-$(hostname)}
  said=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null) && [ -n "$said" ] || return 0
  said=${said%%$'\n'*} driver=${said##*, }
  mkdir -p "$place" && printf '%s\n' "$said" >"$place/.$node.$SLURM_JOB_ID" &&
    mv -f "$place/.$node.$SLURM_JOB_ID" "$place/$node"
  [[ ${driver%%.*} =~ ^[0-9]+$ ]] && [ "${driver%%.*}" -lt NEEDED ] || return 0
  echo "speedrun: the driver is too old: $driver on $node, and NEEDED or later is needed" >&2
  exit 1
}
look_at_gpus
""".strip()


def look(plan: RunPlan) -> list[str]:
    """Lines of the batch script, after the allocation is claimed; none without GPUs."""
    if not plan.gpu_count:
        return []
    return ["", _LOOK.replace("NODES", NODES).replace("NEEDED", str(plan.driver or 0))]
