"""RunPlan → the bash scripts of a pod's containers. Pure.

They print the same marker lines as a batch script does, so that the same log says the same of a run: the first
container marks the attempt, each marks its stages, the last container the ends of runs and of the job. Text from users
stands there only quoted, as the values of variables.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from speedrun_operator.api.names import Identity
from speedrun_operator.backends import events_text, exports, making
from speedrun_operator.backends.pods import code, environment
from speedrun_operator.backends.pods.places import CACHE, TRAIN
from speedrun_operator.planning import RunPlan
from speedrun_operator.recipes.recipe import Stage, Step

ENTRIES = ("code", "image", "data", "downloads")  # containers that make what the others use

_HEAD = r"""
exec 2>&1 # one stream: the runtime stamps the lines of two by themselves, out of their order
set -u
umask 077
export LC_ALL=C PYTHONUNBUFFERED=1 HOME=/tmp
mark() { printf '\nSPEEDRUN %s time=%s\n' "$*" "$(date +%s.%3N)"; }
mkdir -p "$ledger" || { echo "speedrun: cannot write to $ledger" >&2; exit 74; }
""".strip()

# The log goes to the cache volume, too: where that is a claim it outlives the pod, and the node rotates its own.
_KEEP = r"""
exec 3>&1 > >(trap '' TERM INT; exec tee -a "$ledger/log" >&3) 2>&1 3>&-
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

# Whoever reads the log from time to time may miss what the node rotates away in between.
_RESULT = r"""
result() { # the run's last validation once more, where that was at its last step
  local tries
  for tries in {1..20}; do # what was written goes through a pipe to its file
    [ "$code" = 0 ] && ! tail -c 65536 "$ledger/log" | grep -qaF "SPEEDRUN run=$SPEEDRUN_RUN stage=train end" || break
    sleep 0.1
  done
  awk -v run="$SPEEDRUN_RUN" '
    /^SPEEDRUN run=/ { ours = index($0, "SPEEDRUN run=" run " ") == 1; if (!ours) last = "" }
    ours && match($0, /step:[0-9]+\/[0-9]+ .*val_loss:/) {
      split(substr($0, RSTART), step, /[:\/ ]/)
      if (step[2] == step[3]) last = $0
    }
    END { if (last != "") printf "\n%s\n", last }' "$ledger/log"
}
""".strip()

_RUN_ENDS = (
    'gpu_summary "$from"',
    "schedule",
    "result",
    'event run_end exit "$code"',
    'mark "run=$SPEEDRUN_RUN end exit=$code"',
    '[ "$code" = 0 ] || failed=$code',
)


@dataclass(frozen=True, slots=True)
class Part:
    """One container's share of the work: its name and its script."""

    name: str
    script: str


@dataclass(frozen=True, slots=True)
class _Work:
    """What a container does: `calls` for each run, with `functions` and with steps in `files`."""

    name: str
    calls: Sequence[str]
    functions: Sequence[str] = ()
    files: Mapping[str, str] = field(default_factory=dict)


def parts(plan: RunPlan, identity: Identity, allocation: int) -> tuple[Part, ...]:
    """The init containers in their order, then the training container. Raises ValueError for a plan without runs."""
    if not plan.runs:
        raise ValueError("the plan has no runs")
    works = _works(plan)
    return tuple(
        Part(each.name, _script(plan, identity, allocation, each, first=number == 0))
        for number, each in enumerate(works)
    )


def ledger(identity: Identity, allocation: int) -> str:
    """The allocation's directory on the cache volume."""
    return identity.ledger(f"{CACHE}/speedruns", allocation)


def _works(plan: RunPlan) -> list[_Work]:
    works = []
    if calls := code.calls(plan):
        shared = environment.cache_functions() if plan.source else []
        works.append(_Work("code", calls, [*shared, *code.functions(plan)]))
    entries = {
        "image": (plan.container, environment.image),
        "data": (plan.data, environment.data),
        "downloads": (plan.downloads, environment.downloads),
    }
    for name, (there, made) in entries.items():
        if there:
            works.append(_Work(name, [f"stage {name} {name}_stage"], *made(plan)))
    for step in plan.steps:
        if step.stage is not Stage.TRAIN:
            works.append(_Work(step.name, [_call(step)], files=environment.step(step, plan)))
    training = [step for step in plan.steps if step.stage is Stage.TRAIN]
    files = {name: text for step in training for name, text in environment.step(step, plan).items()}
    calls = [_call(step) for step in training]
    if plan.downloads and plan.downloads.proof:
        calls = ["stage proof plain prove-downloads", *calls]
        files |= {"prove-downloads.sh": environment.moved(plan.downloads.proof, plan), **making.programs()}
    return [*works, _Work(TRAIN, calls, files=files)]


def _script(plan: RunPlan, identity: Identity, allocation: int, work: _Work, *, first: bool) -> str:
    last = work.name == TRAIN
    lines = [
        f"ledger={shlex.quote(ledger(identity, allocation))}",
        f"root={CACHE}",
        _HEAD,
        events_text.EVENTS,
        _KEEP,
        _FINISH.replace("LAST", _LAST if last else _LAST_OF_ALL),
        *([_ATTEMPT] if first else []),
        *([events_text.hardware(plan, {"NODE_NAME": "$SPEEDRUN_NODE", "NODE_CPUS": str(plan.cpus)})] if last else []),
        *_variables(plan),
        *environment.common(plan),
        *making.step_files(work.files),
        events_text.STAGE,
        making.PLAIN,
        *work.functions,
        *([_RESULT] if last else []),
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
        "    [ ! -d code ] || cd code || exit 74" if work.name != "code" else "    :",
        '    "variables_$SPEEDRUN_RUN"',
        *([f"    {line}" for line in environment.variables(plan)] if work.name not in ENTRIES else []),
        *([f"    {events_text.RUN_BEGIN}"] if last else []),
        *(f"    {line}" for line in work.calls),
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
    return lines


def _call(step: Step) -> str:
    return f"stage {step.stage.value} plain {step.name}"
