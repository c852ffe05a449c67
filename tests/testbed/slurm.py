"""A real Slurm on loopback: munge, MariaDB, slurmdbd, slurmctld and the slurmds of two emulated GPU nodes.

It is configured by slurm_config and has the Pyxis stand-in (pyxis). Each daemon can be stopped, killed, started,
paused and resumed by itself, for tests of what a cluster does to its clients. `down` leaves nothing running, not
even a job's process that its slurmstepd has lost.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from testbed import accounting, leftovers, ports, slurm_config, users
from testbed.part import Place
from testbed.processes import StartFailed, wait_for
from testbed.pyxis.plugin import Pyxis
from testbed.slurm_config import NODES, PROFILES, Paths

DAEMONS = ("munged", "mariadbd", "slurmdbd", "slurmctld")  # in the order in which they start; the nodes come last
LONGEST_SOCKET = 107  # bytes that the kernel takes as the path of a unix socket
NODE_VARIABLE = "SPEEDRUN_TESTBED_NODE"


@dataclass(frozen=True)
class Daemon:
    """How one daemon is started and how it is known to be ready. `user` None is root."""

    argv: tuple[str | Path, ...]
    ready: Callable[[], bool]
    user: str | None = None
    env: dict[str, str] = field(default_factory=dict)


class Slurm:
    """The Slurm part of a bed. Daemons are named munged, mariadbd, slurmdbd, slurmctld and like the nodes."""

    name = "slurm"

    def __init__(self, place: Place) -> None:
        self.place = place
        self.paths = Paths(place.state / "slurm", place.logs / "slurm")
        self.pyxis = Pyxis(place.state / "pyxis")
        self.env = {
            "SLURM_CONF": str(self.paths.conf),
            "MYSQL_UNIX_PORT": str(self.paths.database_socket),
        }

    def up(self) -> dict[str, str]:
        """Start everything; return once both nodes are idle. Raises StartFailed with the log of what failed."""
        self._check_place()
        self._end_leftovers()
        names = [user.name for user in users.ensure(self.place)]
        slurm_config.write(
            self.paths,
            PROFILES[self.place.profile],
            ports.kept_ports(self.paths.root / "ports.json", slurm_config.PORTS),
            self.pyxis.build(self.place.say),
        )
        self._make_munge_key()
        self.start("munged")
        accounting.make_database(self.paths)
        self.start("mariadbd")
        accounting.let_slurm_in(self.paths)
        self.start("slurmdbd")
        accounting.make_accounts(self.paths, names, self.command)
        self.start("slurmctld")
        self._cancel_jobs()  # of an earlier bed that was not taken down
        for node in NODES:
            self._launch(node)
        for node in NODES:
            self._await(node)
        self._await_idle_nodes()
        return {
            "slurm_conf": str(self.paths.conf),
            "pyxis_log": str(self.pyxis.log),
            "pyxis_control": str(self.pyxis.control),
        }

    def _check_place(self) -> None:
        state = self.place.state
        state.mkdir(parents=True, exist_ok=True)
        state.chmod(0o755)
        closed = [str(parent) for parent in state.resolve().parents if not parent.stat().st_mode & 0o001]
        if closed:
            raise StartFailed("slurm", f"its users could not reach {state}: {closed[0]} is closed to them (mode o+x)")
        if len(str(self.paths.database_socket)) > LONGEST_SOCKET:
            raise StartFailed("slurm", f"{state} is too long a path for unix sockets below it: choose a shorter one")

    def down(self) -> None:
        """Cancel the jobs, stop every daemon, end what is left. Safe to call at any time."""
        if self.place.processes.alive("slurmctld"):
            self._cancel_jobs()
        for node in NODES:
            self.place.processes.kill(node)  # at once: a slurmd that is asked to stop waits for its steps
        self._end_leftovers()
        for name in reversed(DAEMONS):
            self.place.processes.stop(name)

    def command(self, *argv: str, timeout: float = 30.0) -> subprocess.CompletedProcess[str]:
        """Run one of Slurm's commands as root against this bed; the caller looks at the result."""
        return subprocess.run(
            argv,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **self.env},
            timeout=timeout,
            check=False,
        )

    # -- what may happen to a daemon

    def start(self, name: str) -> None:
        """Start a daemon that is down and wait until it is ready."""
        self._launch(name)
        self._await(name)

    def stop(self, name: str) -> None:
        """Stop a daemon as an administrator would (SIGTERM); slurmctld saves its state first."""
        self.place.processes.stop(name)

    def kill(self, name: str) -> None:
        """End a daemon with SIGKILL, as a crash would."""
        self.place.processes.kill(name)

    def pause(self, name: str) -> None:
        """Freeze a daemon: it holds its connections and answers nothing until `resume`."""
        self.place.processes.signal(name, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """Let a paused daemon go on."""
        self.place.processes.signal(name, signal.SIGCONT)

    def configure(self, *lines: str, **changes: str) -> None:
        """Restart slurmctld with more lines in slurm.conf and other values, until `mend`; no value, no line."""
        as_made = self.paths.etc / "slurm.conf.as-made"
        text = self.paths.conf.read_text()
        if not as_made.exists():
            as_made.write_text(text)
        for key, value in changes.items():
            text = re.sub(rf"^{key}=.*\n", "", text, flags=re.MULTILINE)
            text += f"{key}={value}\n" if value else ""
        self.paths.conf.write_text("\n".join([text, *lines, ""]))
        self.stop("slurmctld")
        self.start("slurmctld")

    def heal(self) -> None:
        """Undo what the above did: every daemon runs and answers, no job is left, and both nodes are idle."""
        self.mend()
        self._cancel_jobs()
        self._await_idle_nodes()

    def mend(self) -> None:
        """Every daemon runs and answers again, as it was configured first. Jobs go on."""
        as_made = self.paths.etc / "slurm.conf.as-made"
        if as_made.exists():
            as_made.replace(self.paths.conf)
            self.stop("slurmctld")
        for name in (*DAEMONS, *NODES):
            if self.place.processes.alive(name):
                self.resume(name)
            else:
                self._launch(name)
        for name in (*DAEMONS, *NODES):
            self._await(name)

    def kill_steps(self, node: str) -> None:
        """End the slurmstepds of a node with SIGKILL. What they ran lives on without them."""
        leftovers.end(lambda: filter(_is_stepd, self._processes(**{NODE_VARIABLE: node})))

    def fail_node(self, node: str) -> None:
        """End all that runs on a node at once, as a power cut would; `start(node)` brings it back.

        Slurm fails or requeues its jobs after SlurmdTimeout, or when the node is back before (but not within the
        first 10 s of a job, its BatchStartTimeout).
        """
        self.kill(node)
        self.kill_steps(node)
        leftovers.end(lambda: self._processes(SLURMD_NODENAME=node))

    # -- daemons

    def _launch(self, name: str) -> None:
        daemon = self._daemon(name)
        self.place.processes.start(
            name,
            daemon.argv,
            log=self.paths.log / f"{name}.out",
            env={**self.env, **daemon.env},
            user=daemon.user,
        )

    def _await(self, name: str) -> None:
        try:
            self.place.processes.ready(name, self._daemon(name).ready, timeout=60)
        except StartFailed as failure:
            raise StartFailed(name, str(failure).splitlines()[0].partition(": ")[2], self._log(name)) from failure

    def _log(self, name: str) -> Path:
        """The file in which a daemon says why it ended: its own log where it has begun one, else what it printed."""
        own = self.paths.log / (f"slurmd-{name}.log" if name in NODES else f"{name}.log")
        return own if own.exists() and own.stat().st_size else self.paths.log / f"{name}.out"

    def _daemon(self, name: str) -> Daemon:
        paths = self.paths
        if name == "munged":
            files = {"key-file": "munge.key", "socket": paths.munge_socket.name, "pid-file": "munged.pid"}
            options = [f"--{option}={paths.munge / file}" for option, file in files.items()]
            options += [f"--seed-file={paths.munge}/seed", f"--log-file={paths.munge}/munged.log"]
            return Daemon(("/usr/sbin/munged", "-F", *options), lambda: _accepts(paths.munge_socket), "munge")
        if name == "mariadbd":
            options = [f"--datadir={paths.database}/data", f"--socket={paths.database_socket}", "--skip-networking"]
            options += [f"--pid-file={paths.database}/mysqld.pid", "--innodb-buffer-pool-size=256M"]
            options += ["--innodb-lock-wait-timeout=900", "--innodb-flush-log-at-trx-commit=0"]
            command = ("/usr/sbin/mariadbd", "--no-defaults", *options)
            return Daemon(command, lambda: _accepts(paths.database_socket), "mysql")
        if name == "slurmdbd":
            port = self._port("slurmdbd")
            return Daemon(("/usr/sbin/slurmdbd", "-D"), lambda: ports.answers(port), "slurm")
        if name == "slurmctld":
            return Daemon(("/usr/sbin/slurmctld", "-D"), self._controller_answers, "slurm")
        if name in NODES:
            # Steps inherit the variable from their slurmd: it tells on which of the two nodes they run.
            argv = ("/usr/sbin/slurmd", "-D", "-N", name)
            return Daemon(argv, lambda: self._node_serves(name), env={NODE_VARIABLE: name})
        raise ValueError(f"Slurm has no daemon {name!r} here")

    def _port(self, name: str) -> int:
        return ports.read_ports(self.paths.root / "ports.json")[name]

    def _controller_answers(self) -> bool:
        return self.command("scontrol", "ping").returncode == 0

    def _node_serves(self, node: str) -> bool:
        if not ports.answers(self._port(node)):
            return False
        state = self.command("sinfo", "-h", "-p", "all", "-n", node, "-o", "%t").stdout.strip()
        return bool(state) and state not in ("unk", "down") and not state.endswith("*")

    def _nodes(self) -> str:
        return self.command("sinfo", "-h", "-p", "all", "-o", "%D %t %G").stdout.strip()

    def _await_idle_nodes(self) -> None:
        """Both nodes must be idle; one may still be completing what an earlier bed left."""
        try:
            wait_for("both nodes to be idle", lambda: self._nodes() == "2 idle gpu:nvidia_h100:8", timeout=30)
        except TimeoutError as late:
            reasons = self.command("sinfo", "-R").stdout.strip()
            raise StartFailed(
                "slurm", f"{late}; they are:\n{self._nodes()}\n{reasons}", self._log("slurmctld")
            ) from None

    def _make_munge_key(self) -> None:
        key = self.paths.munge / "munge.key"
        if not key.exists():
            key.touch(mode=0o600)
            key.write_bytes(os.urandom(128))
            shutil.chown(key, "munge", "munge")

    # -- what is left

    def _cancel_jobs(self) -> None:
        """Let the controller note that every job is cancelled; give up quietly when it does not answer."""
        try:
            if jobs := self._job_ids():
                self.command("scancel", *jobs, timeout=10)
        except subprocess.TimeoutExpired:
            return

    def _job_ids(self) -> list[str]:
        return self.command("squeue", "-h", "-o", "%A", timeout=3).stdout.split()

    def user_processes(self) -> list[int]:
        """Pids of all that the bed's users run with this Slurm's configuration, on both nodes and at the login."""
        uids = users.uids()
        return [pid for pid in self._processes() if leftovers.owner(pid) in uids]

    def _processes(self, **environment: str) -> list[int]:
        return leftovers.with_environment(SLURM_CONF=str(self.paths.conf), **environment)

    def _end_leftovers(self) -> None:
        leftovers.end(lambda: filter(_is_stepd, self._processes()))
        leftovers.end(self.user_processes)
        self.pyxis.forget_containers()


def _is_stepd(pid: int) -> bool:
    return leftovers.program(pid).startswith("slurmstepd")  # Debian's is called slurmstepd-wlm


def _accepts(path: Path) -> bool:
    """Whether a daemon takes connections on this unix socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True
