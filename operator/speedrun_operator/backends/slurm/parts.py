"""Parts of batch scripts that both kinds of job have: steps' files, and what makes and finds cache entries. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from speedrun_operator.backends import cache_text, making
from speedrun_operator.backends.slurm import code
from speedrun_operator.backends.slurm.image import pyxis_reference
from speedrun_operator.planning import RunPlan
from speedrun_operator.preparation import keys
from speedrun_operator.preparation.needs import Kind, needs
from speedrun_operator.recipes.recipe import Container

TASK_CPUS = '--cpus-per-task="$SLURM_CPUS_ON_NODE"'
_VERSIONS = """
{python} - {packages} <<'SPEEDRUN_PYTHON' || true
import importlib.metadata, sys
for name in sys.argv[1:]:
    try:
        print(f"version.{{name}}={{importlib.metadata.version(name)}}")
    except importlib.metadata.PackageNotFoundError:
        pass
SPEEDRUN_PYTHON
"""


def bash_path(root: str, *rest: str) -> str:
    """A path as a bash word; a leading `~/` becomes the home directory of whoever runs it."""
    tail = "/".join(rest)
    path = f"{root.rstrip('/')}/{tail}" if tail else root.rstrip("/")
    if path == "~":
        return '"$HOME"'
    return f'"$HOME"/{shlex.quote(path[2:])}' if path.startswith("~/") else shlex.quote(path)


def cache_files(plan: RunPlan, wanted: Iterable[Kind]) -> dict[str, str]:
    """The steps' files with which entries of these kinds are made."""
    files: dict[str, str] = {}
    for kind in wanted:
        if kind is Kind.IMAGE and plan.container:
            files |= {"image.sh": _build(plan.container), "image-probe.sh": _probe(plan.container)}
        elif kind is Kind.DATA and plan.data:
            files["fetch-data.sh"] = plan.data.fetch
        elif kind is Kind.DOWNLOADS and plan.downloads:
            files["fetch-downloads.sh"] = plan.downloads.fetch
    return files


def cache_variables(plan: RunPlan) -> list[str]:
    """What the cache's functions know of the plan. Keys that hang on the code are worked out in the job, from its
    entry (`key_of_image`), so that they are the same whoever makes the entries.
    """
    known = {need.kind: need.key for need in needs(plan, None)}
    lines = [f'cache="$root"/{cache_text.CACHE}', "image='' part='' held='' why=''"]
    lines += [f"{kind}_key={known.get(kind, '')}" for kind in Kind]
    container, downloads, data = plan.container, plan.downloads, plan.data
    if plan.source is not None:
        mentions = downloads.mentions if downloads else None
        lines += code.variables(plan)
        lines += [
            making.array("input_files", container.inputs if container else ()),
            f"mention_pattern={shlex.quote(mentions.pattern if mentions else '')}",
            making.array("mention_files", mentions.files if mentions else ()),
        ]
    if container:
        lines += [
            f"base_image={shlex.quote(pyxis_reference(container.base_image))}",
            f"image_steps={len(container.build) + 2}",
        ]
    if data:
        lines += [
            f"dataset={shlex.quote(data.dataset)}",
            f"data_path={shlex.quote(data.path)}",
            making.array("data_files", plan.data_files),
        ]
    return lines


def cache_functions(plan: RunPlan, wanted: Iterable[Kind], *, make: bool, resources_: str) -> list[str]:
    """The functions that find entries of these kinds, and, with `make`, make them."""
    kinds = tuple(wanted)
    texts = [cache_text.WHOLE, cache_text.PROVIDE]
    if Kind.DATA in kinds:
        texts.append(cache_text.PROVE_DATA)
    if make:
        texts += [_make(plan, kind) for kind in kinds]
    return [cache_text.fill(text, {"SRUN_RESOURCES": resources_}) for text in texts]


def _make(plan: RunPlan, kind: Kind) -> str:
    if kind is Kind.CODE:
        return f"{code.functions(plan)}\n{cache_text.MAKE_CODE}"
    if kind is Kind.IMAGE:
        return cache_text.MAKE_IMAGE
    if kind is Kind.DATA:
        return making.data(_runs_in(plan.data is not None and plan.data.container))
    assert plan.downloads is not None
    return making.downloads(plan.downloads, _runs_in(plan.downloads.container))


def _runs_in(container: bool) -> str:
    return "contained" if container else "plain"


def key_of_image(plan: RunPlan) -> str:
    """A bash word that works the image's key out of the code's entry."""
    if plan.container is None:
        return "''"
    told = '"$(told "code/$code_key" input.files)"' if plan.container.inputs and plan.source else "''"
    return f'"$(join {keys.image_base(plan.container)} {told})"'


def key_of_downloads(plan: RunPlan) -> str:
    """A bash word that works the downloads' key out of the code's entry and the image's key."""
    if plan.downloads is None:
        return "''"
    told = '"$(told "code/$code_key" input.mentions)"' if plan.downloads.mentions and plan.source else "''"
    return f'"$(join {keys.downloads_base(plan.downloads)} "$image_key" {told})"'


def _build(container: Container) -> str:
    """The build's steps as one script that says which one it is at. The first is the container's own start."""
    total = len(container.build) + 2
    run = "${SPEEDRUN_RUN:+run=$SPEEDRUN_RUN }"
    said = f"printf '\nSPEEDRUN %sstage=image progress done=%d total=%d unit=steps\n' \"{run}\""
    parts = [f"{said} 1 {total}"]
    for number, step in enumerate(container.build, 2):
        parts += [step.run.rstrip("\n"), f"{said} {number} {total}"]
    return "\n".join(parts)


def _probe(container: Container) -> str:
    if not container.versions:
        return container.probe
    versions = _VERSIONS.format(python=container.python, packages=shlex.join(container.versions)).strip()
    return f"{container.probe.rstrip()}\n{versions}"
