"""A Python package of this distribution, for jobs that run it."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path


@cache
def sources(name: str) -> tuple[tuple[str, bytes], ...]:
    """The package's files, (path, content) under its own name, in the order of their paths; it is not imported.

    Raises FileNotFoundError if it is not installed.
    """
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(f"the Python package {name} is not installed beside the operator")
    root = Path(next(iter(spec.submodule_search_locations)))
    found = []
    for path in sorted(root.rglob("*")):
        inside = path.relative_to(root)
        if not path.is_file() or any(part == "__pycache__" or part.startswith(".") for part in inside.parts):
            continue
        found.append((f"{name}/{inside.as_posix()}", path.read_bytes()))
    return tuple(found)
