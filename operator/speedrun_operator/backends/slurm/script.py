"""RunPlan → the batch script and sbatch's arguments. Pure.

What sbatch must honour stands in its arguments, since SBATCH_* variables of a profile would override `#SBATCH` lines.
Text from users reaches the script only quoted, as the values of variables; a recipe's steps are files of their own, so
that each is a plain bash program in the ledger.
"""

from __future__ import annotations

import shlex

from speedrun_operator import __version__
from speedrun_operator.api.names import Identity
from speedrun_operator.api.spec import Prepare
from speedrun_operator.backends import cache_text, events_text, exports, making
from speedrun_operator.backends.cache_text import fill
from speedrun_operator.backends.slurm import code, compiled_text, job_text, parts
from speedrun_operator.backends.slurm.hardware import look
from speedrun_operator.backends.slurm.parcel import OPEN, PARCEL, SECRETS
from speedrun_operator.backends.slurm.parts import TASK_CPUS, bash_path
from speedrun_operator.planning import RunPlan
from speedrun_operator.preparation.needs import Kind, kinds
from speedrun_operator.recipes.recipe import Step

OWN_LINES = 4  # of a script, from its first: all that differs between allocations of one plan
LOG = "log"
SCRIPT = "script.sh"
PACKAGE = "package.tar.gz"
STOP = "stop"
LIMIT_SIGNAL = "USR1"
MISSING = ".missing"
SIGNAL_SECONDS = 60  # before the time limit; Slurm may send it up to a minute earlier still
SIGNAL_FROM_MINUTES = 5


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


def render(plan: RunPlan, identity: Identity, allocation: int, root: str, python: str) -> str:
    """The batch script of one allocation under `root` on the shared file system.

    Raises ValueError for a plan without runs (`RunPlan.for_runs` gives it some).
    """
    if not plan.runs:
        raise ValueError("the plan has no runs")
    ledger = identity.ledger(root, allocation)
    inline = plan.slurm.prepare is Prepare.INLINE
    wanted = kinds(plan)
    gres = f"--gres=gpu:{plan.gpu_count} " if plan.gpu_count else ""
    files = {f"{step.name}.sh": step.run for step in plan.steps}
    if plan.downloads and plan.downloads.proof:
        files["prove-downloads.sh"] = plan.downloads.proof
    files |= parts.cache_files(plan, wanted) if inline else {}
    files |= making.programs() if plan.downloads or plan.data else {}
    script = [
        "#!/bin/bash",
        f"# Speedrun {identity}, allocation {allocation}: recipe {plan.recipe}. By speedrun-operator {__version__}.",
        f"root={bash_path(root)}",
        f"ledger={bash_path(ledger)}",
        "mounts=$root:$root",
        job_text.HEAD,
        *look(plan),
        "",
        OPEN.replace("PACKAGE", PACKAGE),
        *_secrets_needed(plan),
        _hardware(plan),
        "",
        *_variables(plan, python),
        "",
        *making.step_files(files),
        "",
        job_text.STAGE,
    ]
    if plan.container:
        script += ["", job_text.CONTAINED.replace("SRUN_RESOURCES", gres + TASK_CPUS)]
    if wanted:
        script += ["", *parts.cache_variables(plan)]
        script += parts.cache_functions(plan, wanted, make=inline, resources_=gres + TASK_CPUS)
        script += _cache_stages(plan, "provide" if inline else "require")
    if plan.compile_cache and plan.container:
        script.append(fill(compiled_text.COMPILED, {"MOST_COMPILED_MIB": str(compiled_text.MOST_COMPILED_MIB)}))
    return "\n".join([*script, "", *_runs(plan, wanted)]) + "\n"


def _hardware(plan: RunPlan) -> str:
    words = {"NODE_NAME": "$(hostname)", "NODE_CPUS": "${SLURM_CPUS_ON_NODE-}"}
    return events_text.hardware(plan, words)


def _secrets_needed(plan: RunPlan) -> list[str]:
    if not plan.secret_env:
        return []
    gone = f"speedrun: {PARCEL}/{SECRETS} is gone, which is there for the job's first start only"
    return [f'[ -n "${{{plan.secret_env[0]}+set}}" ] || {{ echo {shlex.quote(gone)} >&2; exit 74; }}']


def _variables(plan: RunPlan, python: str) -> list[str]:
    lines = exports.exports(plan.environment)
    lines += [f"export SPEEDRUN_GPUS={plan.gpu_count}", f"export SPEEDRUN_CPUS={plan.cpus}"]
    lines += [f"export SPEEDRUN_PYTHON={bash_path(python)}"]
    return lines


def _cache_stages(plan: RunPlan, have: str) -> list[str]:
    """A function for each kind of entry: it is there, and the run uses it. `have` is what makes sure of it."""
    tree = '"$cache/code/$code_key/tree"'
    lines = [f'code_stage() {{ {have} code "$code_key" && rm -rf code && cp -a {tree} code; }}']
    if plan.container:
        lines += [
            "image_stage() {",
            f'  [ -n "$image_key" ] || image_key={parts.key_of_image(plan)}',
            f'  {have} image "$image_key" && image=$cache/image/$image_key/image.sqsh',
            "}",
        ]
    if plan.data:
        path = shlex.quote(plan.data.path)
        lines += [
            "data_stage() {",
            f'  {have} data "$data_key" || return',
            "  export SPEEDRUN_DATA=$cache/data/$data_key/files",
            f'  mkdir -p "$(dirname {path})" && rm -rf {path} && ln -s "$SPEEDRUN_DATA" {path}',
            "}",
        ]
    if plan.downloads:
        own = '"$ledger/run-$SPEEDRUN_RUN/downloads"'
        exports = [f"{name}={own}/{shlex.quote(value)}" for name, value in sorted(plan.downloads.environment.items())]
        lines += [
            cache_text.OWN_COPY,
            "downloads_stage() {",
            f'  [ -n "$downloads_key" ] || downloads_key={parts.key_of_downloads(plan)}',
            f'  {have} downloads "$downloads_key" && own_copy "$cache/downloads/$downloads_key/files" {own} || return',
            f"  export {' '.join(exports)}",
            "  export SPEEDRUN_MENTIONS=$cache/code/$code_key/mentions",
            "}",
        ]
    return lines


def _runs(plan: RunPlan, wanted: tuple[Kind, ...]) -> list[str]:
    body = ['mkdir -p "$ledger/run-$SPEEDRUN_RUN" && cd "$ledger/run-$SPEEDRUN_RUN" || exit 74']
    body.append("export SPEEDRUN_CODE=$PWD/code")
    if plan.package:
        body.append("stage code unpack")
    if Kind.CODE in wanted:
        body.append("stage code code_stage")
    body.append("[ ! -d code ] || cd code || exit 74")
    body += [f"stage {kind} {kind}_stage" for kind in wanted if kind is not Kind.CODE]
    if plan.downloads and plan.downloads.proof:
        body.append(f"stage proof {'contained' if plan.downloads.container else 'plain'} prove-downloads")
    if plan.compile_cache and plan.container:
        body.append("compile_begin")
    body += [_call(step) for step in plan.steps]
    if plan.compile_cache and plan.container:
        body.append("compile_end")
    return [
        *code.unpacking(plan),
        *exports.of_runs(plan),
        "set -m # a run is a process group of its own, so that a signal reaches all of it",
        "failed=0",
        f"runs=({' '.join(str(run.index) for run in plan.runs)})",
        'for SPEEDRUN_RUN in "${runs[@]}"; do',
        f'  [ ! -e "$ledger/{STOP}" ] || {{ mark "job stopped"; break; }}',
        '  mark "run=$SPEEDRUN_RUN begin"',
        "  from=$(samples)",
        "  (",
        "    set +m",
        "    trap - EXIT INT USR1",
        "    trap : TERM # whatever runs gets it and ends by itself; its stage is then marked as ended",
        "    export SPEEDRUN_RUN",
        '    "variables_$SPEEDRUN_RUN"',
        f"    {events_text.RUN_BEGIN}",
        *(f"    {line}" for line in body),
        "  ) &",
        "  child=$!",
        '  wait "$child"',
        "  code=$?",
        "  child=",
        '  gpu_summary "$from"',
        "  schedule",
        '  event run_end exit "$code"',
        '  mark "run=$SPEEDRUN_RUN end exit=$code"',
        '  [ "$code" = 0 ] || failed=$code',
        f'  [ ! -e "$ledger/{MISSING}" ] || break # the runs that follow would miss it, too',
        "done",
        'exit "$failed"',
    ]


def _call(step: Step) -> str:
    return f"stage {step.stage.value} {'contained' if step.container else 'plain'} {step.name}"
