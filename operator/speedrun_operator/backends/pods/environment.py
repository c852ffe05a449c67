"""A pod's Python environment, data and downloads: cache entries that its init containers make where they lack. Pure.

What a recipe builds with the system's packages is the image's affair. Its Python environment is the image's own where
that has one; else it is made in the cache, at its final path, since it cannot be moved. It is there once it has its
manifest, which comes last.
"""

from __future__ import annotations

import shlex

from speedrun_operator.backends import cache_text, making
from speedrun_operator.backends.pods.places import LACKS, MISSING_BUILD_STEPS, SAID
from speedrun_operator.planning import RunPlan
from speedrun_operator.preparation import keys
from speedrun_operator.preparation.needs import Kind, needs
from speedrun_operator.recipes.recipe import Container, Step

MOST_WORDS = 300

_LACKS = r"""
lacks() { # lacks WHAT: why the image will not do, in the log and for the operator
  local words="LACKS$1"NEEDS
  echo "$words" >&2
  printf %s "$words" >SAID
  return MISSING_EXIT
}
""".strip()

_PROBE = r"""
image_stage() { plain image-probe || lacks 'what the recipe looks for'; }
""".strip()

_VENV = r"""
image_stage() {
  local place code name told_pip
  [ ! -s "$ledger/venv" ] || return 0 # for another run of this pod
  export SPEEDRUN_VENV=OWN_VENV
  if ! plain image-probe >/dev/null 2>&1; then
    python3 -c 'import ensurepip, venv' 2>/dev/null || lacks 'python3 with venv and ensurepip (python3-venv)' || return
    # By these the run tells pip where to look, and for what.
    told_pip=$(for name in "${!PIP_@}"; do printf '%s=%s\n' "$name" "${!name}"; done)
    key=$(join BASE "$(python3 -c 'import platform, sys; print(sys.version, platform.machine())')" \
      ${code_key:+"$(told "code/$code_key" input.files)"} ${told_pip:+"$told_pip"})
    place=$cache/python/$key
    export SPEEDRUN_VENV=$place/venv
    if [ ! -s "$place/MANIFEST" ]; then
      mkdir -p "$cache/python" || return 74
      hold "$place"
      code=$?
      [ "$code" -lt 2 ] || return "$code"
      if [ ! -s "$place/MANIFEST" ]; then
        rm -rf "$place"
        mkdir "$place" && plain build-python && plain image-probe &&
          printf 'kind=python\nkey=%s\njob=%s\nmade=%s\n' "$key" "$SPEEDRUN_JOB" "$(date +%s)" >"$place/.made" &&
          mv "$place/.made" "$place/MANIFEST"
        code=$?
        [ "$code" = 0 ] || rm -rf "$place"
      else
        code=0
      fi
      let_go
      [ "$code" = 0 ] || return "$code"
    fi
    touch -c "$place/MANIFEST"
    event cache kind python key "$key"
  fi
  printf '%s\n' "$SPEEDRUN_VENV" >"$ledger/.venv" && mv "$ledger/.venv" "$ledger/venv"
}
""".strip()

_DATA = r"""
data_stage() {
  provide data "$data_key" || return
  mkdir -p "$(dirname PATH_OF_DATA)" && rm -rf PATH_OF_DATA && ln -s "$cache/data/$data_key/files" PATH_OF_DATA
}
""".strip()

_DOWNLOADS = r"""
downloads_stage() {
  local key
  key=$(join BASE "${SPEEDRUN_VENV-}" ${code_key:+"$(told "code/$code_key" input.mentions)"})
  provide downloads "$key" &&
    own_copy "$cache/downloads/$key/files" "$ledger/run-$SPEEDRUN_RUN/downloads"
}
""".strip()


def common(plan: RunPlan) -> list[str]:
    """What every container knows: where the cache is, and what earlier containers found."""
    needed = ""
    if plan.container and (system := _system_steps(plan.container)):
        needed = shlex.quote(f"; it must have what this installs: {system}"[:MOST_WORDS])
    words = {"LACKS": LACKS, "NEEDS": needed, "SAID": SAID, "MISSING_EXIT": str(MISSING_BUILD_STEPS)}
    lines = [
        "cache=$root/.cache",
        'told_once() { [ ! -s "$ledger/$1" ] || cat "$ledger/$1"; }',
        "code_key=$(told_once code)",
        *([f"data_key={_key(plan, Kind.DATA)}"] if plan.data else []),
        cache_text.fill(_LACKS, words),
    ]
    if plan.container and plan.container.venv:
        lines += ["SPEEDRUN_VENV=$(told_once venv)", "export SPEEDRUN_VENV"]
    return lines


def cache_functions() -> list[str]:
    """Those that find and make cache entries. In them a pod is what a job is."""
    return [cache_text.fill(text, {"SLURM_JOB_ID": "SPEEDRUN_JOB"}) for text in (cache_text.WHOLE, cache_text.PROVIDE)]


def image(plan: RunPlan) -> tuple[list[str], dict[str, str]]:
    """Functions of the container that looks at the image and makes the Python environment, and the steps' files."""
    container = plan.container
    if container is None:
        return [], {}
    files = {"image-probe.sh": moved(container.probe, plan)}
    python = [each.run for each in container.build if each.kind == "python"]
    if not container.venv or not python:
        return [_PROBE], files
    total = len(python)
    said = "printf '\\nSPEEDRUN run=%s stage=image progress done=%d total=%d unit=steps\\n' \"$SPEEDRUN_RUN\""
    lines = [f"{said} 0 {total}"]
    for number, step in enumerate(python, 1):
        lines += [moved(step, plan).rstrip("\n"), f"{said} {number} {total}"]
    files["build-python.sh"] = "\n".join(lines)
    base = keys.digest("python", plan.pods.image, *python)
    text = cache_text.fill(_VENV).replace("OWN_VENV", shlex.quote(container.venv)).replace("BASE", base)
    return [*cache_functions(), text], files


def data(plan: RunPlan) -> tuple[list[str], dict[str, str]]:
    """The same of the container that has the data at hand; it is checked as in a job."""
    if plan.data is None:
        return [], {}
    path = shlex.quote(plan.data.path)
    lines = [
        f"dataset={shlex.quote(plan.data.dataset)}",
        f"data_path={path}",
        making.array("data_files", plan.data_files),
        *cache_functions(),
        cache_text.fill(cache_text.PROVE_DATA),
        cache_text.fill(making.data("plain")),
        _DATA.replace("PATH_OF_DATA", path),
    ]
    return lines, {"fetch-data.sh": moved(plan.data.fetch, plan), **making.programs()}


def downloads(plan: RunPlan) -> tuple[list[str], dict[str, str]]:
    """The same of the container that has at hand what the program would download."""
    if plan.downloads is None:
        return [], {}
    base = keys.digest("downloads", keys.downloads_base(plan.downloads), plan.pods.image)
    lines = [
        *cache_functions(),
        making.downloads(plan.downloads, "plain"),
        cache_text.OWN_COPY,
        _DOWNLOADS.replace("BASE", base),
    ]
    return lines, {"fetch-downloads.sh": moved(plan.downloads.fetch, plan), **making.programs()}


def variables(plan: RunPlan) -> list[str]:
    """What training sees of the entries."""
    lines = []
    if plan.data:
        lines.append("export SPEEDRUN_DATA=$cache/data/$data_key/files")
    if plan.downloads:
        own = '"$ledger/run-$SPEEDRUN_RUN/downloads"'
        given = sorted(plan.downloads.environment.items())
        lines += [f"export {name}={own}/{shlex.quote(value)}" for name, value in given]
        lines.append("export SPEEDRUN_MENTIONS=$cache/code/$code_key/mentions")
    return lines


def step(each: Step, plan: RunPlan) -> dict[str, str]:
    """A step's file."""
    return {f"{each.name}.sh": moved(each.run, plan)}


def moved(text: str, plan: RunPlan) -> str:
    """A recipe's command with the place of its Python environment as it is in pods."""
    venv = plan.container.venv if plan.container else None
    return text.replace(venv, "$SPEEDRUN_VENV") if venv else text


def _system_steps(container: Container) -> str:
    steps = [each.run for each in container.build if each.kind == "system"]
    return "; ".join(" ".join(line.split()) for each in steps for line in each.strip().splitlines())


def _key(plan: RunPlan, kind: Kind) -> str:
    return next(each.key for each in needs(plan, None) if each.kind is kind)
