"""Parts of scripts that jobs and pods have in common: their steps' files, and what makes cache entries. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from importlib import resources

from speedrun_operator.backends import cache_text
from speedrun_operator.recipes import recipe as recipes
from speedrun_operator.recipes.recipe import Downloads

PLAIN = r"""
plain() { bash -euo pipefail "$ledger/steps/$1.sh"; }
""".strip()


def array(name: str, values: Iterable[str]) -> str:
    """A bash array of these words."""
    return f"{name}=({shlex.join(values)})"


def step_files(files: Mapping[str, str]) -> list[str]:
    """Lines that write each text to a file of its own below the ledger's `steps`."""
    lines = ['mkdir -p "$ledger/steps"', 'export SPEEDRUN_STEPS="$ledger/steps"']
    for name, text in files.items():
        lines += [f"cat >\"$ledger/steps/{name}\" <<'SPEEDRUN_STEP'", text.rstrip("\n"), "SPEEDRUN_STEP"]
    return lines


def programs() -> dict[str, str]:
    """Python programs that ship with the recipes, for their steps."""
    folder = resources.files(recipes.__package__) / "programs"
    names = sorted(each.name for each in folder.iterdir() if each.name.endswith(".py"))
    return {name: (folder / name).read_text(encoding="utf-8") for name in names}


def data(runs_in: str) -> str:
    """The function that makes the entry of a data set. `runs_in`: the function that runs its step `fetch-data`."""
    return cache_text.MAKE_DATA.replace("FETCH", runs_in)


def downloads(given: Downloads, runs_in: str) -> str:
    """The same of downloads, and their step `fetch-downloads`."""
    variables = given.environment.items()
    exports = " ".join(f'{name}="$part"/files/{shlex.quote(value)}' for name, value in sorted(variables))
    folders = " ".join(f'"$part"/files/{shlex.quote(value)}' for _, value in sorted(variables))
    words = {
        "FETCH": runs_in,
        "VARIABLES": f"export {exports}",
        "DIRECTORIES": f"mkdir -p {folders} || return",
    }
    text = cache_text.MAKE_DOWNLOADS
    for word, value in words.items():
        text = text.replace(word, value)
    return text
