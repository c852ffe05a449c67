"""The base that images are built on here: a small Debian of the machine's own release, where no registry is asked.

It stands in for the bases that the Dockerfile names. mmdebstrap makes it of packages from where this machine's apt
gets them; apt in it gets its own from there, too. Without documentation, as Debian's slim images are.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import subprocess
import time
from pathlib import Path

from testbed.locks import exclusive
from testbed.part import Place
from testbed.processes import StartFailed

LEFT_OUT = ("doc", "info", "lintian", "locale", "man")
INDEX = ("apt-get", "indextargets", "--format", "$(ORIGIN)|deb $(REPO_URI) $(RELEASE) $(COMPONENT)")
KEPT = re.compile(r"Acquire::(Check-|\S*Proxy)")


def key() -> str:
    """Names the base by what it is made of: this machine's sources, and this file. Raises StartFailed."""
    made_of = [_sources(), _options(), Path(__file__).read_text()]
    return hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:12]


def base(place: Place) -> Path:
    """A tar of the base's files, made where the cache has none by this key. Raises StartFailed."""
    target = place.cache / "images" / f"debian-{key()}.tar"
    with exclusive(place.cache / "images" / "lock", lambda who: place.say(f"images: waiting for {who}")):
        if not target.exists():
            _make(place, target)
    return target


def _make(place: Place, target: Path) -> None:
    began = time.monotonic()
    place.say("images: making the base of Debian's packages, once (60 MB to fetch, half a minute)")
    part = target.with_name(f"unfinished-{target.name}")
    argv = ["mmdebstrap", "--variant=minbase", "--mode=root"]
    argv += [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in LEFT_OUT]
    argv += ["--dpkgopt=force-unsafe-io"]  # as in Docker's Debian: what is lost with the machine is made again
    argv += [f"--aptopt={each}" for each in _options()]
    argv += [platform.freedesktop_os_release()["VERSION_CODENAME"], str(part), "-"]
    log = place.logs / "image-base.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as out:
        done = subprocess.run(argv, input="\n".join(_sources()).encode(), stdout=out, stderr=out, check=False)
    if done.returncode != 0:
        part.unlink(missing_ok=True)
        raise StartFailed("images", "mmdebstrap could not make the base: is Debian's package mirror reachable?", log)
    part.replace(target)
    place.say(f"images: the base is made, in {time.monotonic() - began:.0f} s")


def _sources() -> list[str]:
    """Lines of a sources.list: what this machine's apt knows of Debian itself."""
    said = subprocess.run([*INDEX, "Created-By: Packages"], capture_output=True, text=True, check=True).stdout
    lines = [line.partition("|")[2] for line in said.splitlines() if line.startswith("Debian|")]
    if not lines:
        raise StartFailed("images", "apt knows no repository of Debian's: run `apt-get update`")
    return sorted(set(lines))


def _options() -> list[str]:
    """How this machine's apt is told to reach its repositories, as far as it differs from what apt does by itself."""
    said = subprocess.run(["apt-config", "dump", "Acquire"], capture_output=True, text=True, check=True).stdout
    return [line for line in said.splitlines() if KEPT.match(line) and not line.endswith('"";')]
