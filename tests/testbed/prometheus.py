"""Prometheus' own code on rules, queries and scrapes: promcheck/main.go, built once into the cache.

It takes two minutes of CPU to build and is for the long tests only.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed.locks import exclusive
from testbed.part import Place
from testbed.processes import StartFailed
from testbed.tools import Toolbox, go_environment

SOURCE = Path(__file__).parent / "promcheck"
BUILD_SECONDS = 1200


@dataclass(frozen=True)
class Answers:
    """What is wrong with the rules; and for each query how many series answer it, or what is wrong with it."""

    rules: list[str]
    queries: list[int | str]


def built(place: Place) -> Path:
    """The program, built first where need be. Raises StartFailed."""
    text = b"".join((SOURCE / name).read_bytes() for name in ("main.go", "go.mod", "go.sum"))
    program = place.cache / "bin" / f"promcheck-{hashlib.sha256(text).hexdigest()[:12]}" / "promcheck"
    with exclusive(place.cache / "build.lock", lambda holder: place.say(f"waiting for the build of {holder}")):
        if program.exists():
            return program
        place.say(
            "building promcheck from Prometheus' Go modules, once: two minutes of CPU where Go has cached nothing"
        )
        program.parent.mkdir(parents=True, exist_ok=True)
        scratch, log = program.with_name("unfinished"), program.with_name("build.log")
        argv = [Toolbox(place, SOURCE).go(), "build", "-o", str(scratch), "."]
        with log.open("wb") as out:
            done = subprocess.run(
                argv,
                cwd=SOURCE,
                env=go_environment(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                timeout=BUILD_SECONDS,
                check=False,
            )
        if done.returncode != 0:
            raise StartFailed("promcheck", "its build failed", log)
        scratch.replace(program)
    return program


def ask(place: Place, rules: str, queries: Sequence[str], scrapes: Sequence[tuple[int, str]]) -> Answers:
    """`rules` checked, and `queries` answered at the last of `scrapes`: (milliseconds since the epoch, text)."""
    asked = {"rules": rules, "queries": [*queries], "scrapes": [{"time": at, "text": text} for at, text in scrapes]}
    done = subprocess.run(
        [built(place)], input=json.dumps(asked), capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode != 0:
        raise StartFailed("promcheck", done.stderr.strip())
    told = json.loads(done.stdout)
    return Answers(told["rules"], [each["error"] or each["series"] for each in told["queries"]])
