"""A plan's variables as lines of bash. Pure: text from users stands only quoted, as a variable's value."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from speedrun_operator.planning import RunPlan


def exports(variables: Iterable[tuple[str, str]]) -> list[str]:
    """A line for each name and value."""
    return [f"export {name}={shlex.quote(value)}" for name, value in variables]


def parameters(values: Iterable[tuple[str, str]]) -> list[str]:
    """A recipe's parameters, as `PARAM_<NAME>`."""
    return exports((f"PARAM_{name.upper()}", value) for name, value in values)


def of_runs(plan: RunPlan) -> list[str]:
    """For each run a function `variables_<index>` that exports what only that run has."""
    lines: list[str] = []
    for run in plan.runs:
        own = [*exports(run.environment), *parameters(run.parameters), *exports([("SPEEDRUN_ARM", run.arm)])]
        lines += [f"variables_{run.index}() {{", *(f"  {line}" for line in own), "}"]
    return lines
