"""Debian 12's packages that the bed runs on: found missing, installed, none of their services started."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path

from testbed import apt
from testbed.part import Place
from testbed.processes import StartFailed, start_ticks

PACKAGES = (
    "buildah",
    "ca-certificates",
    "containerd",
    "containernetworking-plugins",
    "faketime",
    "fish",
    "gcc",
    "git",
    "iproute2",
    "libc6-dev",
    "libslurm-dev",
    "mariadb-server",
    "mmdebstrap",
    "munge",
    "openssh-client",
    "openssh-server",
    "python3-venv",
    "runc",
    "shellcheck",  # of the texts that run on login nodes and in jobs
    "slurm-client",
    "slurm-wlm-basic-plugins",
    "slurmctld",
    "slurmd",
    "slurmdbd",
    "tcsh",
    "zsh",
)
SERVICES = frozenset({"mariadbd", "munged", "slurmctld", "slurmd", "slurmdbd", "sshd"})


def install(place: Place) -> None:
    """Install what is missing of PACKAGES; instant when nothing is.

    Raises StartFailed: not Debian 12, not root, apt failed (with the end of its log), or a service was started.
    """
    _check_machine()
    apt.put_policy_back()
    missing = missing_packages()
    if not missing:
        return
    place.say(f"packages: installing {len(missing)} Debian packages: {' '.join(missing)}")
    log = place.logs / "packages.log"
    began = time.monotonic()
    before = _services()
    _run_apt(place, missing, log)
    started = {pid: name for pid, name in _services().items() if pid not in before}
    if started:
        listed = ", ".join(f"{name} (pid {pid})" for pid, name in sorted(started.items()))
        raise StartFailed("packages", f"the installation started {listed} although {apt.POLICY} forbade it", log)
    if still_missing := missing_packages():
        raise StartFailed("packages", f"still missing after the installation: {' '.join(still_missing)}", log)
    place.say(f"packages: installed in {time.monotonic() - began:.0f} s; no service was started")


def missing_packages() -> list[str]:
    """The names in PACKAGES that are not fully installed."""
    asked = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *PACKAGES],
        capture_output=True,
        text=True,
        check=False,
    )
    installed = {line.split()[0] for line in asked.stdout.splitlines() if line.endswith(" installed")}
    return [name for name in PACKAGES if name not in installed]


def _check_machine() -> None:
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        release = {}
    if (release.get("ID"), release.get("VERSION_ID")) != ("debian", "12"):
        found = release.get("PRETTY_NAME", platform.system())
        raise StartFailed("packages", f"the test bed needs Debian 12, this is {found}: run it in a debian:12 container")
    if os.geteuid() != 0:
        raise StartFailed("packages", "the test bed installs packages and makes users: run it as root")


def _run_apt(place: Place, names: list[str], log: Path) -> None:
    """Run testbed.apt to its end, and tell how much apt fetches as soon as apt says so."""
    log.parent.mkdir(parents=True, exist_ok=True)
    argv = [sys.executable, "-m", "testbed.apt", *names]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    told = False
    with (
        log.open("wb") as out,
        subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment, start_new_session=True
        ) as running,
    ):
        while running.poll() is None:
            if place.processes.closed:
                running.terminate()
                running.wait()
                raise StartFailed("packages", "the installation was interrupted")
            if not told and (amount := _amount(log)):
                place.say(f"packages: {amount}, about 20 s")
                told = True
            time.sleep(0.1)
    if running.returncode != 0:
        raise StartFailed("packages", "Debian's packages could not be installed", log)


def _amount(log: Path) -> str | None:
    """apt's own sentence on how much it fetches, as `34.1 MB to fetch, 215 MB on disk`, once it is in the log."""
    text = log.read_text(errors="replace")
    fetched = re.search(r"Need to get (?:[\d.,]+ \w?B/)?([\d.,]+ \w?B) of archives", text)
    disk = re.search(r"After this operation, ([\d.,]+ \w?B) of additional", text)
    return f"{fetched[1]} to fetch, {disk[1]} on disk" if fetched and disk else None


def _services() -> dict[int, str]:
    """Pid and name of each running daemon of SERVICES that init has, as one started by a package would be."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or start_ticks(int(entry.name)) is None:
            continue
        try:
            stat = (entry / "stat").read_text()
        except OSError:
            continue
        name = stat[stat.index("(") + 1 : stat.rindex(")")]
        if name in SERVICES and stat.rpartition(")")[2].split()[1] == "1":
            found[int(entry.name)] = name
    return found
