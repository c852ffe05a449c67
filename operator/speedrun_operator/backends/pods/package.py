"""A Python package of ours as the gzipped tar that a pod unpacks. The same files give the same bytes."""

from __future__ import annotations

import gzip
import io
import tarfile
from functools import cache

from speedrun_operator.backends.package import sources


@cache
def pack(name: str) -> bytes:
    """The package's sources under their own name. FileNotFoundError if it is not installed."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, content in sources(name):
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            entry.mode = 0o644
            archive.addfile(entry, io.BytesIO(content))
    return gzip.compress(plain.getvalue(), mtime=0)
