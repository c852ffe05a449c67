"""The bed as the fault tests break it and look at it: jobs whoever made them, ledgers, the login user's home."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cluster.waiting import POLL
from testbed import leftovers, users
from testbed.slurm import Slurm

USER, OTHER = users.NAMES
START = re.compile(rb"^SPEEDRUN attempt job=([0-9]+) ", re.MULTILINE)


def stays(what: str, holds: Callable[[], Any], seconds: float) -> None:
    """`holds` gives something true each time it is looked at, for so long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert holds(), f"{what}: no longer so"
        time.sleep(POLL)


class World:
    """Slurm and the login user's home, by root's eyes."""

    def __init__(self, slurm: Slurm) -> None:
        self.slurm = slurm
        self.home = Path(pwd.getpwnam(USER).pw_dir)

    # --- jobs

    def squeue(self, columns: str = "%i|%j|%u|%T|%r", *options: str) -> list[list[str]]:
        """Jobs of all users that are not over."""
        done = self.slurm.command("squeue", "-h", "-t", "pending,running,completing,suspended", "-o", columns, *options)
        assert done.returncode == 0, done.stderr
        return [line.split("|") for line in done.stdout.splitlines()]

    def live(self, name: str) -> bool:
        """Whether a job of this name waits or runs."""
        return any(row[1] == name for row in self.squeue())

    def state(self, job: str) -> str:
        return self.slurm.command("squeue", "-h", "-t", "all", "-o", "%T", "-j", job).stdout.strip()

    def jobs_ever(self, uid: str) -> list[str]:
        """Ids of all jobs that Slurm has or had of one Speedrun."""
        queue = self.slurm.command("squeue", "-h", "-t", "all", "-o", "%i|%j").stdout
        past = self.slurm.command("sacct", "-a", "-X", "-n", "-P", "-S", "2020-01-01", "-o", "JobIDRaw,JobName").stdout
        return sorted({line.split("|")[0] for line in (queue + past).splitlines() if uid in line})

    def admin(self, *argv: str) -> str:
        """A command of Slurm's administrator that must succeed."""
        done = self.slurm.command(*argv)
        assert done.returncode == 0, (argv, done.stderr)
        return done.stdout

    def sbatch(self, user: str, name: str, comment: str, seconds: int = 120) -> str:
        """A job of a user's own, for which no Speedrun asked; its id."""
        argv = ["sbatch", "--parsable", f"--job-name={name}", f"--comment={comment}", "--mem=16M", "--time=5"]
        argv += ["--output=/dev/null", f"--wrap=sleep {seconds}"]
        environment = {**os.environ, **self.slurm.env, "HOME": pwd.getpwnam(user).pw_dir}
        done = subprocess.run(
            argv, capture_output=True, text=True, check=True, user=user, group=user, extra_groups=[], cwd="/",
            env=environment,
        )  # fmt: skip
        return done.stdout.strip()

    def processes(self, job: str) -> list[int]:
        """Pids of what a job of the login user runs, the batch script first."""
        uid = self.home.stat().st_uid
        return sorted(pid for pid in leftovers.with_environment(SLURM_JOB_ID=job) if leftovers.owner(pid) == uid)

    # --- ledgers

    def ledgers(self, uid: str) -> list[Path]:
        """The allocations' directories of one Speedrun, in turn."""
        found = self.home.glob(f"speedruns/*/*-{uid[:8]}/alloc-*")
        return sorted(found, key=lambda each: int(each.name.rpartition("-")[2]))

    def starts(self, uid: str) -> list[list[str]]:
        """For each allocation the jobs that began to work for it, as its log says: one, whatever happened."""
        logs = [each / "log" for each in self.ledgers(uid)]
        return [[job.decode() for job in START.findall(log.read_bytes())] if log.exists() else [] for log in logs]

    # --- the home

    def write(self, name: str, text: str, mode: int = 0o644) -> Path:
        """A file of the login user's own, below its home."""
        path = self.home / name
        owner = self.home.stat()
        for parent in reversed(path.relative_to(self.home).parents[:-1]):
            (self.home / parent).mkdir(exist_ok=True)
            os.chown(self.home / parent, owner.st_uid, owner.st_gid)
        path.write_text(text)
        path.chmod(mode)
        os.chown(path, owner.st_uid, owner.st_gid)
        return path

    @contextlib.contextmanager
    def programs(self, **scripts: str) -> Iterator[Path]:
        """Put bash scripts of these names before the login's own programs, as a site's wrappers stand there.

        In a script `real` stands for the wrapped program's path, `notes` for the directory that is given, where the
        user may leave files. Counts for sessions opened meanwhile.
        """
        notes = self.write("wrappers/notes/.keep", "").parent
        notes.chmod(0o777)
        for name, script in scripts.items():
            real = shutil.which(name)
            assert real is not None, name
            self.write(f"wrappers/{name}", f"#!/bin/bash\nreal={real}\nnotes={notes}\n{script}\n", 0o755)
        profile = self.home / ".bashrc"
        before = profile.read_text() if profile.exists() else ""
        self.write(".bashrc", f'PATH="{notes.parent}:$PATH"\n')
        try:
            yield notes
        finally:
            self.write(".bashrc", before)
            shutil.rmtree(notes.parent)

    def kill_wrappers(self, notes: Path) -> None:
        """End what the login user still runs of `programs`."""
        uid = self.home.stat().st_uid
        leftovers.end(
            lambda: [pid for pid in leftovers.of_user(uid) if str(notes.parent).encode() in _command_line(pid)]
        )

    def make_claims_old(self, uid: str) -> None:
        """Let the claims of one Speedrun be older than what a submission may take, as if that time had passed."""
        claims = [claim for ledger in self.ledgers(uid) for claim in ledger.glob("claim*")]
        assert claims
        for claim in claims:
            os.utime(claim, (0, 0))


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
