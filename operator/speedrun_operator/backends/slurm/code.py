"""The part of the batch script that brings the code into ./code. Pure."""

from __future__ import annotations

import shlex

from speedrun_operator.backends.slurm.parcel import CODE, PARCEL, PATCH
from speedrun_operator.planning import RunPlan
from speedrun_operator.source import git


def variables(plan: RunPlan) -> list[str]:
    """What `functions` reads: where the code comes from."""
    source = plan.source
    if source is None:
        return []
    values = {
        "repository": source.repository,
        "commit": source.commit or source.revision,
        "patch_hash": source.patch_hash,
        "source_path": source.path,
        "source_content": source.content,
    }
    return [f"{name}={shlex.quote(value or '')}" for name, value in values.items()]


def functions(plan: RunPlan) -> list[str]:
    """The function that `stage_of` names, with what it needs."""
    if plan.package:
        return [f'unpack() {{ mkdir -p code && cp -R "$ledger/{PARCEL}/{CODE}/." code; }}']
    if plan.source is None:
        return []
    return [
        git.OWN_GIT,
        f"skip=({shlex.join(plan.cached_paths)})",
        git.CHECKOUT,
        git.CHECK_OUT.replace("PATCH", f"{PARCEL}/{PATCH}"),
        "checkout() {",
        "  check_out || return",
        *(f"  {line}" for path in plan.cached_paths for line in _cached(shlex.quote(path))),
        "}",
    ]


def stage_of(plan: RunPlan) -> str | None:
    """The command of the stage `code`; None where the plan has no code of its own."""
    return "unpack" if plan.package else "checkout" if plan.source else None


def _cached(path: str) -> list[str]:
    return [
        f'mkdir -p "$SPEEDRUN_CACHE"/{path} "$(dirname code/{path})" || return',
        f'rm -rf code/{path} && ln -s "$SPEEDRUN_CACHE"/{path} code/{path} || return',
    ]
