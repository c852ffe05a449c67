"""Wheels as pip installs them, of a module or two, without a build."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path


def wheel(folder: Path, name: str, version: str, modules: Mapping[str, str], scripts: Mapping[str, str]) -> None:
    """A wheel in `folder`. `modules`: files and their text; `scripts`: commands and the functions that they call."""
    about = f"{name}-{version}.dist-info"
    commands = "".join(f"{command} = {function}\n" for command, function in scripts.items())
    files = {
        **modules,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: by hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/entry_points.txt": f"[console_scripts]\n{commands}",
    }
    record = f"{about}/RECORD"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as made:
        for path, text in files.items():
            made.writestr(path, text)
        made.writestr(record, "".join(f"{path},,\n" for path in (*files, record)))
