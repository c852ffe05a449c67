"""A Python package of this distribution as a gzipped tar, for jobs that run it. The same files give the same bytes."""

from __future__ import annotations

import gzip
import io
import tarfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path


@cache
def pack(name: str) -> bytes:
    """The package's sources under their own name, without importing it. FileNotFoundError if it is not installed."""
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(f"the Python package {name} is not installed beside the operator")
    root = Path(next(iter(spec.submodule_search_locations)))
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(root.rglob("*")):
            inside = path.relative_to(root)
            if not path.is_file() or any(part == "__pycache__" or part.startswith(".") for part in inside.parts):
                continue
            content = path.read_bytes()
            entry = tarfile.TarInfo(f"{name}/{inside.as_posix()}")
            entry.size = len(content)
            entry.mode = 0o644
            archive.addfile(entry, io.BytesIO(content))
    return gzip.compress(plain.getvalue(), mtime=0)
