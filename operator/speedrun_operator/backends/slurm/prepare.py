"""A need → the batch script and sbatch's arguments of the job that makes its entry. Pure.

The job holds no GPU, belongs to no Speedrun, and is bounded in CPUs, memory and time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from speedrun_operator import __version__
from speedrun_operator.backends import exports, making
from speedrun_operator.backends.cache_text import CACHE
from speedrun_operator.backends.slurm import job_text, parts
from speedrun_operator.backends.slurm.parcel import OPEN
from speedrun_operator.backends.slurm.parts import TASK_CPUS, bash_path
from speedrun_operator.planning import RunPlan
from speedrun_operator.preparation.needs import Kind, Need

JOBS = f"{CACHE}/jobs"
PACKAGE = "package.tar.gz"
PREPARE_PREFIX = "sp"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a prepare job gets at most. `partition` empty: the one that the training job would have."""

    partition: str = ""
    cpus: int = 8
    memory_mib: int = 32 * 1024
    minutes: int = 120


def job_prefix(cluster: str, key: str) -> str:
    """`sp-<cluster8>-<key16>-`, which the attempt follows: a name is used once, so what Slurm says of it is clear."""
    return f"{PREPARE_PREFIX}-{cluster}-{key}-"


def attempts(key: str) -> str:
    """The directory of an entry's attempts, each with a ledger of its own, below the root."""
    return f"{JOBS}/{key}"


def arguments(plan: RunPlan, limits: Limits, scope: str, avoid: Sequence[str] = ()) -> list[str]:
    """sbatch's arguments but for paths and the job's name. `scope`: which operators may end it. `avoid`: nodes of the
    plan's partition to keep off.

    What names nodes for their GPUs (constraint, nodeList) is not for a job without any. In a partition of its own the
    spec's reservation does not hold, either, and how many nodes are left is not known.
    """
    options = plan.slurm
    partition = limits.partition or plan.partition
    there = partition == plan.partition
    minutes = min(limits.minutes, plan.most_minutes) if there and plan.most_minutes else limits.minutes
    found = [
        "--parsable",
        f"--comment=speedrun-prepare {scope}",
        "--no-requeue",
        "--open-mode=append",
        "--nodes=1",
        "--ntasks=1",
        f"--cpus-per-task={limits.cpus}",
        f"--mem={limits.memory_mib}M",
        f"--time={minutes}",
        "--gres=none",
    ]
    named = {
        "partition": partition,
        "account": options.account,
        "qos": options.qos,
        "reservation": options.reservation if there else "",
        "exclude": ",".join(dict.fromkeys([*options.exclude, *(avoid if there else ())])),
    }
    return found + [f"--{option}={value}" for option, value in named.items() if value]


def render(plan: RunPlan, need: Need, root: str, python: str) -> str:
    """The batch script; the ledger is the directory that it is started in, since the attempt is chosen there."""
    kind = need.kind
    files = parts.cache_files(plan, (kind,))
    files |= making.programs() if kind in (Kind.DATA, Kind.DOWNLOADS) else {}
    script = [
        "#!/bin/bash",
        f"# Cache entry {need}, for recipe {plan.recipe}. By speedrun-operator {__version__}.",
        f"root={bash_path(root)}",
        "ledger=$PWD",
        "mounts=$root:$root",
        "unset SPEEDRUN_RUN",
        job_text.HEAD,
        "",
        OPEN.replace("PACKAGE", PACKAGE),
        *exports.exports(plan.environment),
        *exports.parameters(plan.parameters),
        f"export SPEEDRUN_PYTHON={bash_path(python)}",
        "",
        *making.step_files(files),
        "",
        job_text.STAGE,
        job_text.CONTAINED.replace("SRUN_RESOURCES", TASK_CPUS),
        "",
        *parts.cache_variables(plan),
        *parts.cache_functions(plan, (kind,), make=True, resources_=TASK_CPUS),
        "make() {",
        '  cd "$ledger" || return',
        *(f"  {line} || return" for after in need.after for line in _reads(plan, after)),
        '  provide "$@"',
        "}",
        "set -m # so that a signal reaches all of it",
        "(",
        "  set +m",
        "  trap - EXIT INT USR1",
        "  trap : TERM # what was begun is cleaned away",
        f"  stage {kind} make {kind} {need.key}",
        ") &",
        "child=$!",
        'wait "$child"',
        "code=$?",
        "child=",
        'exit "$code"',
    ]
    return "\n".join(script) + "\n"


def _reads(plan: RunPlan, kind: Kind) -> list[str]:
    """Commands that make sure of an entry that this job reads."""
    if kind is Kind.IMAGE:
        image = "image=$cache/image/$image_key/image.sqsh"
        return [f"image_key={parts.key_of_image(plan)}", 'require image "$image_key"', image]
    return ['require code "$code_key"', "export SPEEDRUN_CODE=$cache/code/$code_key/tree"]
