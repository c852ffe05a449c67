"""RunPlan → the bash scripts of a pod's containers. Pure.

They print the same marker lines as a batch script does, so that the same log says the same of a run: the first
container marks the attempt, each marks its stages, the last container the ends of runs and of the job. Text from users
stands there only quoted, as the values of variables.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from speedrun_operator.api.names import Identity
from speedrun_operator.backends import events_text, exports
from speedrun_operator.planning import RunPlan
from speedrun_operator.recipes import recipe as recipes
from speedrun_operator.recipes.recipe import Stage, Step

CACHE = "/cache"
PACKAGE = "/package/package.tar.gz"
TRAIN = "train"
MISSING_BUILD_STEPS = 78

_HEAD = r"""
set -u
umask 077
export LC_ALL=C PYTHONUNBUFFERED=1 HOME=/tmp
mark() { printf '\nSPEEDRUN %s time=%s\n' "$*" "$(date +%s.%3N)"; }
mkdir -p "$ledger" || { echo "speedrun: cannot write to $ledger" >&2; exit 74; }
""".strip()

# The log goes to the cache volume, too: there it outlives the pod.
_KEEP = r"""
exec 3>&1 > >(trap '' TERM INT; exec tee -a "$ledger/log" >&3) 2>&1
keeper=$!
""".strip()

_FINISH = r"""
child=
signal=
finish() {
  code=$?
  trap - EXIT
  LAST
  [ -z "${sampler-}" ] || kill "$sampler" 2>/dev/null
  exec >&- 2>&-
  [ -z "${keeper:-}" ] || wait "$keeper"
  exit "$code"
}
trap finish EXIT
ended_by() { # ended_by SIGNAL CODE: what runs gets SIGTERM as a whole, then the container ends
  trap '' TERM INT
  signal=$1
  [ -z "$child" ] || { kill -TERM -- "-$child" 2>/dev/null; wait "$child"; }
  exit "$2"
}
trap 'ended_by TERM 143' TERM
trap 'ended_by INT 130' INT
""".strip()

# What a container says when it ends: the last one, that the job is over; others, if they failed, that all is.
_LAST = """
mark "job end exit=$code"
  event end exit "$code" signal "$signal"
""".strip()
_LAST_OF_ALL = """
if [ "$code" != 0 ]; then
    mark "run=${SPEEDRUN_RUN:-0} end exit=$code"
    mark "job end exit=$code"
    event end exit "$code" signal "$signal"
  fi
""".strip()

_ATTEMPT = """
mark "attempt job=$SPEEDRUN_JOB node=$SPEEDRUN_NODE"
event start job "$SPEEDRUN_JOB" name "$HOSTNAME" node "$SPEEDRUN_NODE"
""".strip()

_RUN_ENDS = (
    'gpu_summary "$from"',
    "schedule",
    'event run_end exit "$code"',
    'mark "run=$SPEEDRUN_RUN end exit=$code"',
    '[ "$code" = 0 ] || failed=$code',
)


@dataclass(frozen=True, slots=True)
class Part:
    """One container's share of the work: its name and its script."""

    name: str
    script: str


def parts(plan: RunPlan, identity: Identity, allocation: int, *, keep_log: bool) -> tuple[Part, ...]:
    """The init containers in their order, then the training container. Raises ValueError for a plan without runs."""
    if not plan.runs:
        raise ValueError("the plan has no runs")
    before = [(name, body) for name, body in _preparations(plan) if body]
    named = [*before, (TRAIN, [_call(step) for step in plan.steps if step.stage is Stage.TRAIN])]
    return tuple(
        Part(name, _script(plan, identity, allocation, name, body, first=number == 0, keep_log=keep_log))
        for number, (name, body) in enumerate(named)
    )


def ledger(identity: Identity, allocation: int) -> str:
    """The allocation's directory on the cache volume."""
    return identity.ledger(f"{CACHE}/speedruns", allocation)


def _preparations(plan: RunPlan) -> list[tuple[str, list[str]]]:
    """Names of init containers and what they do for each run."""
    code: list[str] = []
    if plan.package:
        code = ["stage code unpack"]
    elif plan.source:
        code = ["stage code checkout"]
    image = ["stage image probe"] if plan.container else []
    steps = [(step.name, [_call(step)]) for step in _steps(plan) if step.stage is not Stage.TRAIN]
    return [("image", image), ("code", code), *steps]


def _script(
    plan: RunPlan, identity: Identity, allocation: int, name: str, body: Sequence[str], *, first: bool, keep_log: bool
) -> str:
    last = name == TRAIN
    lines = [
        f"ledger={shlex.quote(ledger(identity, allocation))}",
        f"root={CACHE}",
        _HEAD,
        events_text.EVENTS,
        *([_KEEP] if keep_log else []),
        _FINISH.replace("LAST", _LAST if last else _LAST_OF_ALL),
        *([_ATTEMPT] if first else []),
        *([events_text.hardware(plan, {"NODE_NAME": "$SPEEDRUN_NODE", "NODE_CPUS": str(plan.cpus)})] if last else []),
        *_variables(plan),
        *_functions(plan, name),
        events_text.STAGE,
        *exports.of_runs(plan),
        "failed=0",
        f"runs=({' '.join(str(run.index) for run in plan.runs)})",
        'for SPEEDRUN_RUN in "${runs[@]}"; do',
        *(['  mark "run=$SPEEDRUN_RUN begin"'] if first else []),
        *(["  from=$(samples)"] if last else []),
        "  set -m # a run is a process group of its own, so that a signal reaches all of it",
        "  (",
        "    set +m",
        "    trap - EXIT INT",
        "    trap : TERM # whatever runs gets it and ends by itself; its stage is then marked as ended",
        "    export SPEEDRUN_RUN",
        '    mkdir -p "$ledger/run-$SPEEDRUN_RUN" && cd "$ledger/run-$SPEEDRUN_RUN" || exit 74',
        "    export SPEEDRUN_CODE=$PWD/code",
        "    [ ! -d code ] || cd code || exit 74" if name != "code" else "    :",
        '    "variables_$SPEEDRUN_RUN"',
        *([f"    {events_text.RUN_BEGIN}"] if last else []),
        *(f"    {line}" for line in body),
        "  ) &",
        "  child=$!",
        "  set +m # else bash tells of its end, too",
        '  wait "$child"',
        "  code=$?",
        "  child=",
        *(f"  {line}" for line in (_RUN_ENDS if last else ['[ "$code" = 0 ] || exit "$code"'])),
        "done",
        'exit "$failed"',
    ]
    return "\n".join(lines) + "\n"


def _variables(plan: RunPlan) -> list[str]:
    lines = exports.exports(plan.environment)
    lines += [f"export SPEEDRUN_GPUS={plan.gpu_count}", f"export SPEEDRUN_CPUS={plan.cpus}"]
    lines += [f"export SPEEDRUN_CACHE={CACHE}/.cache/{shlex.quote(plan.recipe)}"]
    if plan.data:
        lines += [
            f"export SPEEDRUN_DATA=$SPEEDRUN_CACHE/{shlex.quote(plan.data.path)}",
            f"export SPEEDRUN_DATA_FILES={shlex.quote(' '.join(plan.data_files))}",
        ]
    return lines


def _steps(plan: RunPlan) -> list[Step]:
    """The plan's steps, the download of its data before them. It has the programs that ship with recipes at hand."""
    if plan.data is None:
        return [*plan.steps]
    folder = resources.files(recipes.__package__) / "programs"
    lines = ['mkdir -p "$SPEEDRUN_DATA"', "export SPEEDRUN_STEPS=/tmp/steps", 'mkdir -p "$SPEEDRUN_STEPS"']
    for each in sorted(folder.iterdir(), key=lambda each: each.name):
        if each.name.endswith(".py") and each.name in plan.data.fetch:
            text = shlex.quote(each.read_text(encoding="utf-8"))
            lines.append(f'printf %s {text} >"$SPEEDRUN_STEPS/{each.name}"')
    return [Step(name="data", stage=Stage.DATA, run="\n".join([*lines, plan.data.fetch])), *plan.steps]


def _functions(plan: RunPlan, name: str) -> list[str]:
    if name == "code" and plan.package:
        return [f"unpack() {{ mkdir -p code && tar -xzf {PACKAGE} -C code; }}"]
    if name == "code" and plan.source:
        body = _checkout(plan)
        return [
            f"repository={shlex.quote(plan.source.repository or '')}",
            f"commit={shlex.quote(plan.source.commit or plan.source.revision or 'HEAD')}",
            "checkout() {",
            *(f"  {line}" for line in body),
            "}",
        ]
    if name == "image" and plan.container:
        probe = shlex.quote(plan.container.probe)
        return [f"probe() {{ bash -euo pipefail -c {probe} || return {MISSING_BUILD_STEPS}; }}"]
    wanted = [step for step in _steps(plan) if (step.stage is Stage.TRAIN) == (name == TRAIN)]
    return [
        f"{_function(step)}() {{ bash -euo pipefail -c {shlex.quote(step.run)}; }}"
        for step in wanted
        if name == TRAIN or step.name == name
    ]


def _checkout(plan: RunPlan) -> list[str]:
    lines = [
        "[ ! -d code ] || rm -rf code",
        'git clone --quiet -- "$repository" code && git -C code checkout --quiet --detach "$commit" || return',
    ]
    for path in [plan.data.path] if plan.data else []:
        quoted = shlex.quote(path)
        lines += [
            f'mkdir -p "$SPEEDRUN_CACHE"/{quoted} "$(dirname code/{quoted})" || return',
            f'rm -rf code/{quoted} && ln -s "$SPEEDRUN_CACHE"/{quoted} code/{quoted} || return',
        ]
    return lines


def _call(step: Step) -> str:
    return f"stage {step.stage.value} {_function(step)}"


def _function(step: Step) -> str:
    return "step_" + step.name.replace("-", "_")
