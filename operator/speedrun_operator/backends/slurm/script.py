"""RunPlan → the batch script and sbatch's arguments. Pure.

What sbatch must honour stands in its arguments, since SBATCH_* variables of a profile would override `#SBATCH` lines.
Text from users reaches the script only quoted, as the values of variables; a recipe's steps are files of their own, so
that each is a plain bash program in the ledger.
"""

from __future__ import annotations

import hashlib
import shlex

from speedrun_operator import __version__
from speedrun_operator.api.names import Identity
from speedrun_operator.backends.slurm import code
from speedrun_operator.backends.slurm.hardware import look
from speedrun_operator.backends.slurm.image import pyxis_reference
from speedrun_operator.backends.slurm.parcel import OPEN, PARCEL, SECRETS
from speedrun_operator.planning import RunPlan
from speedrun_operator.recipes.recipe import Container, Step

LOG = "log"
SCRIPT = "script.sh"
PACKAGE = "package.tar.gz"
CACHE = ".cache"
STOP = "stop"
LIMIT_SIGNAL = "USR1"
SIGNAL_SECONDS = 60  # before the time limit; Slurm may send it up to a minute earlier still
SIGNAL_FROM_MINUTES = 5

_HEAD = r"""
set -u
umask 077
export LC_ALL=C PYTHONUNBUFFERED=1
mark() { printf '\nSPEEDRUN %s time=%s\n' "$*" "$(date +%s.%3N)"; }

# Two jobs of one allocation can exist after an unknown submission. The first to start owns it; the other ends here.
printf '%s\n' "$SLURM_JOB_ID" >"$ledger/.owner.$SLURM_JOB_ID" &&
  ln "$ledger/.owner.$SLURM_JOB_ID" "$ledger/owner" 2>/dev/null
owner=$(cat "$ledger/owner" 2>/dev/null)
if [ "$owner" != "$SLURM_JOB_ID" ]; then
  [ -n "$owner" ] || { echo "speedrun: cannot write to $ledger on $(hostname)" >&2; exit 74; }
  echo "speedrun: job $SLURM_JOB_ID ends at once: the owner of this allocation is $owner" >&2
  exit 0
fi
rm -f "$ledger/exit" # of an earlier start of this job, before it was requeued

signal=
finish() {
  code=$?
  trap - EXIT
  rm -rf "$ledger/.enroot"
  mark "job end exit=$code"
  printf 'job=%s exit=%s time=%s%s\n' "$SLURM_JOB_ID" "$code" "$(date +%s)" "${signal:+ signal=$signal}" \
    >"$ledger/.exit.$SLURM_JOB_ID" &&
    mv -f "$ledger/.exit.$SLURM_JOB_ID" "$ledger/exit"
  exit "$code"
}
trap finish EXIT
child=
ended_by() { # ended_by SIGNAL CODE: the run gets SIGTERM as a whole, then the job ends
  trap '' TERM INT USR1
  signal=$1
  [ -z "$child" ] || { kill -TERM -- "-$child" 2>/dev/null; wait "$child"; }
  exit "$2"
}
trap 'ended_by TERM 143' TERM
trap 'ended_by INT 130' INT
trap 'mark "job limit"; ended_by USR1 140' USR1
mark "attempt job=$SLURM_JOB_ID node=$(hostname)"
""".strip()

_STAGE = r"""
stage() { # stage NAME COMMAND...: runs it, marks begin and end, ends the run if it fails
  local name=$1 code
  shift
  mark "run=$SPEEDRUN_RUN stage=$name begin"
  "$@"
  code=$?
  mark "run=$SPEEDRUN_RUN stage=$name end exit=$code"
  [ "$code" = 0 ] || exit "$code"
}
plain() { bash -euo pipefail "$ledger/steps/$1.sh"; }
""".strip()

_CONTAINER = r"""
contained() {
  srun --container-image="$image" --container-workdir="$SPEEDRUN_CODE" --container-mounts="$root:$root" \
    --ntasks=1 SRUN_RESOURCES \
    bash -euo pipefail "$ledger/steps/$1.sh"
}
build_image() { # beside its place, probed, then moved in: Pyxis saves a half-built container after a failed step, too
  [ ! -f "$image" ] || return 0
  mkdir -p "$(dirname "$image")"
  local part=$image.part.$SLURM_JOB_ID from=$base_image
  if [ -n "$registry_user" ]; then # enroot looks for credentials only where the reference names their user
    from=docker://$registry_user@${base_image#docker://}
    local -x ENROOT_CONFIG_PATH=$ledger/.enroot
    mkdir -p "$ENROOT_CONFIG_PATH" && printf %s "$registry_netrc" >"$ENROOT_CONFIG_PATH/.credentials" || return
  fi
  srun --container-image="$from" --container-save="$part" --container-mounts="$root:$root" --ntasks=1 \
    SRUN_RESOURCES bash -euo pipefail "$ledger/steps/image.sh" &&
    srun --container-image="$part" --container-mounts="$root:$root" --ntasks=1 SRUN_RESOURCES \
      bash -euo pipefail "$ledger/steps/image-probe.sh" &&
    mv -n "$part" "$image"
  local code=$?
  rm -f "$part"
  rm -rf "$ledger/.enroot"
  [ "$code" = 0 ] && [ -f "$image" ]
}
""".strip()


def bash_path(root: str, *rest: str) -> str:
    """A path as a bash word; a leading `~/` becomes the home directory of whoever runs it."""
    tail = "/".join(rest)
    path = f"{root.rstrip('/')}/{tail}" if tail else root.rstrip("/")
    if path == "~":
        return '"$HOME"'
    return f'"$HOME"/{shlex.quote(path[2:])}' if path.startswith("~/") else shlex.quote(path)


def sbatch_arguments(plan: RunPlan, identity: Identity, name: str) -> list[str]:
    """sbatch's arguments but for the paths, which depend on the login's home directory."""
    options = plan.slurm
    arguments = [
        "--parsable",
        f"--job-name={name}",
        f"--comment=speedrun {identity.namespace}/{identity.name}",
        "--no-requeue",
        "--open-mode=append",
        "--nodes=1",
        f"--time={plan.time_limit_minutes}",
    ]
    if plan.time_limit_minutes >= SIGNAL_FROM_MINUTES:
        arguments.append(f"--signal=B:{LIMIT_SIGNAL}@{SIGNAL_SECONDS}")
    if plan.partition:
        arguments.append(f"--partition={plan.partition}")
    if plan.gpu_count:
        arguments.append(f"--gres=gpu:{plan.gpu_count}")
    if plan.exclusive:
        arguments += ["--exclusive", "--mem=0"]
    else:
        arguments += ["--ntasks=1", f"--cpus-per-task={plan.cpus}", f"--mem={plan.memory_mib}M"]
    named = {
        "account": options.account,
        "qos": options.qos,
        "reservation": options.reservation,
        "constraint": options.constraint,
        "nodelist": ",".join(options.node_list),
        "exclude": ",".join(options.exclude),
        "nice": str(options.nice or ""),
    }
    return arguments + [f"--{option}={value}" for option, value in named.items() if value]


def image_key(container: Container, code: str | None) -> str:
    """Names a built image by what goes into it; `code` names the code (Source.key)."""
    content = "\0".join((container.base_image, container.build, code or ""))
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def render(plan: RunPlan, identity: Identity, allocation: int, root: str, python: str) -> str:
    """The batch script of one allocation under `root` on the shared file system.

    Raises ValueError for a plan without runs (`RunPlan.for_runs` gives it some).
    """
    if not plan.runs:
        raise ValueError("the plan has no runs")
    ledger = identity.ledger(root, allocation)
    parts = [
        "#!/bin/bash",
        f"# Speedrun {identity}, allocation {allocation}: recipe {plan.recipe}. By speedrun-operator {__version__}.",
        f"root={bash_path(root)}",
        f"ledger={bash_path(ledger)}",
        _HEAD,
        *look(plan),
        "",
        OPEN.replace("PACKAGE", PACKAGE),
        *_secrets_needed(plan),
        *_variables(plan, python),
        "",
        'mkdir -p "$ledger/steps"',
        *_step_files(plan),
        "",
        _STAGE,
    ]
    if plan.container:
        resources = '--cpus-per-task="$SLURM_CPUS_ON_NODE"'
        if plan.gpu_count:
            resources = f"--gres=gpu:{plan.gpu_count} {resources}"
        image = bash_path(root, CACHE, "images", f"{image_key(plan.container, plan.code_key)}.sqsh")
        parts += [
            "",
            f"image={image}",
            f"base_image={shlex.quote(pyxis_reference(plan.container.base_image))}",
            _CONTAINER.replace("SRUN_RESOURCES", resources),
        ]
    return "\n".join([*parts, "", *_runs(plan)]) + "\n"


def _secrets_needed(plan: RunPlan) -> list[str]:
    if not plan.secret_env:
        return []
    gone = f"speedrun: {PARCEL}/{SECRETS} is gone, which is there for the job's first start only"
    return [f'[ -n "${{{plan.secret_env[0]}+set}}" ] || {{ echo {shlex.quote(gone)} >&2; exit 74; }}']


def _variables(plan: RunPlan, python: str) -> list[str]:
    lines = [f"export {name}={shlex.quote(value)}" for name, value in plan.environment]
    lines += [f"export SPEEDRUN_GPUS={plan.gpu_count}", f"export SPEEDRUN_CPUS={plan.cpus}"]
    lines += [f"export SPEEDRUN_PYTHON={bash_path(python)}"]
    lines += [f'export SPEEDRUN_CACHE="$root"/{CACHE}/{plan.recipe}']
    lines += code.variables(plan)
    return lines


def _step_files(plan: RunPlan) -> list[str]:
    files = [(step.name, step.run) for step in plan.steps]
    if plan.container:
        files = [("image", plan.container.build), ("image-probe", plan.container.probe), *files]
    lines: list[str] = []
    for name, text in files:
        lines += [f"cat >\"$ledger/steps/{name}.sh\" <<'SPEEDRUN_STEP'", text.rstrip("\n"), "SPEEDRUN_STEP"]
    return lines


def _runs(plan: RunPlan) -> list[str]:
    body = ['mkdir -p "$ledger/run-$SPEEDRUN_RUN" && cd "$ledger/run-$SPEEDRUN_RUN" || exit 74']
    body.append("export SPEEDRUN_CODE=$PWD/code")
    if bring := code.stage_of(plan):
        body.append(f"stage code {bring}")
    body.append("[ ! -d code ] || cd code || exit 74")
    if plan.container:
        body.append("stage image build_image")
    body += [_call(step) for step in plan.steps]
    return [
        *code.functions(plan),
        *_run_variables(plan),
        "set -m # a run is a process group of its own, so that a signal reaches all of it",
        "failed=0",
        f"runs=({' '.join(str(run.index) for run in plan.runs)})",
        'for SPEEDRUN_RUN in "${runs[@]}"; do',
        f'  [ ! -e "$ledger/{STOP}" ] || {{ mark "job stopped"; break; }}',
        '  mark "run=$SPEEDRUN_RUN begin"',
        "  (",
        "    set +m",
        "    trap - EXIT INT USR1",
        "    trap : TERM # whatever runs gets it and ends by itself; its stage is then marked as ended",
        "    export SPEEDRUN_RUN",
        '    "variables_$SPEEDRUN_RUN"',
        *(f"    {line}" for line in body),
        "  ) &",
        "  child=$!",
        '  wait "$child"',
        "  code=$?",
        "  child=",
        '  mark "run=$SPEEDRUN_RUN end exit=$code"',
        '  [ "$code" = 0 ] || failed=$code',
        "done",
        'exit "$failed"',
    ]


def _run_variables(plan: RunPlan) -> list[str]:
    lines: list[str] = []
    for run in plan.runs:
        exports = [f"export {name}={shlex.quote(value)}" for name, value in run.environment]
        exports += [f"export PARAM_{name.upper()}={shlex.quote(value)}" for name, value in run.parameters]
        exports.append(f"export SPEEDRUN_ARM={shlex.quote(run.arm)}")
        lines += [f"variables_{run.index}() {{", *(f"  {line}" for line in exports), "}"]
    return lines


def _call(step: Step) -> str:
    return f"stage {step.stage.value} {'contained' if step.container else 'plain'} {step.name}"
