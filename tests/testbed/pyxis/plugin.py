"""Builds the Pyxis stand-in for a bed, switches its faults, reads what its steps were given.

The C sources beside this file make the plugin; `container/` holds the programs that only a step with a container
sees (apt-get, git, python3 and what pip brings). Nothing here needs a running Slurm.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from testbed.processes import StartFailed

SOURCES = Path(__file__).parent
FLAGS = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", "-fPIC", "-shared")


class Pyxis:
    """The stand-in of one bed, in `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log = root / "steps.jsonl"
        self.control = root / "control"

    def build(self, say: Callable[[str], None]) -> str:
        """Compile the plugin if its sources changed and lay out its directory; the line for plugstack.conf."""
        for name in ("", "control", "containers"):
            directory = self.root / name
            directory.mkdir(parents=True, exist_ok=True)
            directory.chmod(0o711 if name == "containers" else 0o755)
        self.log.touch()
        self._lay_out_programs()
        plugin = self.root / "spank_pyxis.so"
        stamp = self.root / "spank_pyxis.sha256"
        wanted = self._digest()
        if not plugin.exists() or not stamp.exists() or stamp.read_text() != wanted:
            say("pyxis: compiling the stand-in")
            self._compile(plugin)
            stamp.write_text(wanted)
        return f"required {plugin} {self.root}\n"

    def fail_pulls(self, code: int = 429) -> None:
        """Let every pull from a registry fail with this status code, until `succeed`."""
        (self.control / "pull-fails").write_text(str(code))

    def fail_saves(self) -> None:
        """Let every --container-save run out of disk half-way and leave a truncated file, until `succeed`."""
        (self.control / "save-fails").touch()

    def succeed(self) -> None:
        """End what `fail_pulls` and `fail_saves` began."""
        for flag in self.control.iterdir():
            flag.unlink()

    def events(self, job: int | None = None) -> list[dict[str, Any]]:
        """What steps with a container were given and what became of their saves, oldest first; of one job if named."""
        events = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [event for event in events if job is None or event["job"] == job]

    def forget_containers(self) -> None:
        """Remove what steps left behind. Call it when none runs."""
        shutil.rmtree(self.root / "containers", ignore_errors=True)

    def _digest(self) -> str:
        digest = hashlib.sha256(" ".join(FLAGS).encode())
        for source in sorted(SOURCES.glob("*.[ch]")):
            digest.update(source.name.encode() + source.read_bytes())
        return digest.hexdigest()

    def _compile(self, plugin: Path) -> None:
        built = plugin.with_suffix(".new")
        argv = ["gcc", *FLAGS, "-o", str(built), *map(str, sorted(SOURCES.glob("*.c")))]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise StartFailed("pyxis", f"gcc could not compile the stand-in:\n{done.stderr}")
        built.replace(plugin)

    def _lay_out_programs(self) -> None:
        programs = self.root / "programs"
        shutil.rmtree(programs, ignore_errors=True)
        shutil.copytree(SOURCES / "container", programs)
        for path in (programs, *programs.rglob("*")):
            path.chmod(0o755)
