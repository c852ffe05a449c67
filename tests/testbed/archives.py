"""What is in an image's archive, as `docker save` writes one: its files, its size and how it is run."""

from __future__ import annotations

import json
import tarfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

GONE = ".wh."  # a layer names what it removes so


@dataclass(frozen=True)
class Contents:
    """`config` as Docker's API calls its fields; `files` without directories; `size`: bytes of all layers."""

    config: dict[str, Any]
    files: frozenset[str]
    size: int


def read(archive: Path) -> Contents:
    """The contents of the archive's only image."""
    files: set[str] = set()
    size = 0
    with tarfile.open(archive) as outer:
        (image,) = json.loads(_read(outer, "manifest.json"))
        config = json.loads(_read(outer, image["Config"]))["config"]
        for name in image["Layers"]:
            layer = outer.extractfile(name)
            assert layer is not None
            with tarfile.open(fileobj=layer) as inner:
                for entry in inner:
                    _apply(entry, files)
            size += outer.getmember(name).size
    return Contents(config, frozenset(files), size)


def _apply(entry: tarfile.TarInfo, files: set[str]) -> None:
    path = PurePosixPath("/", entry.name)
    if path.name.startswith(GONE):
        gone = str(path.with_name(path.name.removeprefix(GONE)))
        files.difference_update({each for each in files if each == gone or each.startswith(f"{gone}/")})
    elif not entry.isdir():
        files.add(str(path))


def _read(outer: tarfile.TarFile, name: str) -> bytes:
    file = outer.extractfile(name)
    assert file is not None
    return file.read()
