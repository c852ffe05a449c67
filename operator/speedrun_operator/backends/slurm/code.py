"""The parts of batch scripts that bring code into ./code. Pure."""

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


def unpacking(plan: RunPlan) -> list[str]:
    """The function that brings our own package's sources into ./code; none for other plans."""
    return [f'unpack() {{ mkdir -p code && cp -R "$ledger/{PARCEL}/{CODE}/." code; }}'] if plan.package else []


def functions(plan: RunPlan) -> str:
    """The function `check_out`, which brings the code of the plan's source into ./code."""
    left_out = [plan.data.path] if plan.data else []
    checks_out = git.CHECK_OUT.replace("PATCH", f"{PARCEL}/{PATCH}")
    return "\n".join([git.OWN_GIT, f"skip=({shlex.join(left_out)})", git.CHECKOUT, checks_out])
