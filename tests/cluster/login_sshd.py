"""A real sshd on a loopback port and a throw-away account, for the tests of the login connection. Needs root."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from speedrun_operator.login import LoginTarget
from testbed import ports
from testbed.processes import Processes, start_ticks

SSHD = Path("/usr/sbin/sshd")
HOST = "127.0.0.1"
PREFIX = "srbed-login-"


class Account:
    """A user of this machine with its own home, until `remove`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.home = Path(pwd.getpwnam(name).pw_dir)

    @classmethod
    def make(cls) -> Account:
        """A new account, named for this process: other test runs on the machine have their own."""
        name = f"{PREFIX}{os.getpid()}"
        _change_users("useradd", "--create-home", "--password", "*", "--shell", "/bin/bash", name)
        return cls(name)

    @classmethod
    def remove_leftovers(cls) -> None:
        """Remove the accounts of test runs that were killed."""
        for entry in pwd.getpwall():
            owner = entry.pw_name.removeprefix(PREFIX)
            if owner != entry.pw_name and owner.isdecimal() and start_ticks(int(owner)) is None:
                cls(entry.pw_name).remove()

    def use_shell(self, shell: str) -> None:
        _change_users("usermod", "--shell", shell, self.name)

    def write(self, name: str, text: str) -> Path:
        """Write a file of the account's home, with the account as its owner."""
        path = self.home / name
        entry = pwd.getpwnam(self.name)
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        for each in (path.parent, path):
            os.chown(each, entry.pw_uid, entry.pw_gid)
        return path

    def empty(self) -> None:
        """Take everything out of the home directory, start-up files included."""
        for path in self.home.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def remove(self) -> None:
        """Remove the account with its home, after ending whatever still runs as it."""
        uid = pwd.getpwnam(self.name).pw_uid
        for pid in _processes_of(uid):
            _signal(pid, signal.SIGKILL)
        _change_users("userdel", "--remove", self.name)


class LoginSshd:
    """One sshd with its own host key, and the keys and known_hosts of a client that may log in as `account`."""

    def __init__(self, directory: Path, account: Account) -> None:
        self.directory = directory
        self.account = account
        self.port = ports.kept_ports(directory / "ports.json", ["sshd"])["sshd"]
        self.log = directory / "sshd.log"
        self.known_hosts = directory / "known_hosts"
        self.key = self.make_key("client")
        self._processes = Processes(directory / "processes")
        self.new_host_key()
        self.pin()
        account.write(".ssh/authorized_keys", self.key.with_suffix(".pub").read_text())

    def make_key(self, name: str, passphrase: str = "", kind: str = "ed25519") -> Path:
        """A new key pair NAME, NAME.pub."""
        path = self.directory / name
        for old in (path, path.with_suffix(".pub")):
            old.unlink(missing_ok=True)
        command = ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", name, "-f", str(path)]
        subprocess.run(command, check=True, capture_output=True)
        return path

    def new_host_key(self, kind: str = "ed25519") -> str:
        """Give the server another host key (from its next start on); returns its SHA256 fingerprint."""
        self.make_key("host", kind=kind)
        return self.host_fingerprint()

    def host_fingerprint(self) -> str:
        return self.fingerprint(self.directory / "host")

    def fingerprint(self, key: Path) -> str:
        """SHA256 fingerprint as ssh-keygen shows it."""
        command = ["ssh-keygen", "-lf", key.with_suffix(".pub")]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[1]

    def host_line(self, name: str | None = None) -> str:
        """The known_hosts line of the present host key."""
        return f"{name or f'[{HOST}]:{self.port}'} {(self.directory / 'host.pub').read_text()}"

    def pin(self) -> None:
        """Make known_hosts say what the server has now."""
        self.known_hosts.write_text(self.host_line())

    def target(self, **changes: Any) -> LoginTarget:
        settings: dict[str, Any] = {
            "host": HOST,
            "port": self.port,
            "user": self.account.name,
            "key": self.key,
            "known_hosts": self.known_hosts,
            "backoff_first": 0.1,
        }
        return LoginTarget(**settings | changes)

    def start(self, options: Mapping[str, object] | None = None) -> None:
        """Start, with sshd_config keywords over the usual ones, and wait until the port answers."""
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd's own privilege separation directory
        settings: dict[str, object] = {
            "Port": self.port,
            "ListenAddress": HOST,
            "HostKey": self.directory / "host",
            "PidFile": "none",
            "PasswordAuthentication": "no",
            "KbdInteractiveAuthentication": "no",
            "UsePAM": "no",
            "StrictModes": "no",
            "MaxSessions": 10,
            "LogLevel": "VERBOSE",
        } | dict(options or {})
        config = self.directory / "sshd_config"
        config.write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
        self._processes.start("sshd", [SSHD, "-D", "-e", "-f", config], log=self.log)
        self._processes.ready("sshd", self._listens, timeout=30)

    def stop(self) -> None:
        """End the server and all its connections."""
        self.thaw()
        connections = self._connections()
        self._processes.stop("sshd")
        for pid in connections:
            _signal(pid, signal.SIGKILL)

    def drop_connections(self) -> None:
        """Kill the processes that serve connections; the server goes on."""
        for pid in self._connections():
            _signal(pid, signal.SIGKILL)

    def freeze(self) -> None:
        """Stop everything with SIGSTOP: the kernel still takes connections, nothing answers."""
        for pid in self._family():
            _signal(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        for pid in self._family():
            _signal(pid, signal.SIGCONT)

    def logins(self) -> int:
        """How often a client has logged in, by the server's own log."""
        return self.log.read_text().count("Accepted publickey")

    def _listens(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(1)
            return probe.connect_ex((HOST, self.port)) == 0

    def _family(self) -> list[int]:
        proc = self._processes.get("sshd")
        return [] if proc is None else [proc.pid, *_descendants(proc.pid)]

    def _connections(self) -> list[int]:
        """The server's processes below the listener, without the commands that run in them."""
        return [pid for pid in self._family()[1:] if _command(pid).startswith("sshd:")]


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            child = int(stat.parent.name)
            found += [child, *_descendants(child)]
    return found


def _processes_of(uid: int) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if folder.stat().st_uid == uid:
                found.append(int(folder.name))
    return found


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _change_users(*command: str) -> None:
    """Run useradd or a relative. For a moment another test run may hold the lock of /etc/passwd, or a process that
    was killed not be gone."""
    deadline = time.monotonic() + 20
    while True:
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            return
        if not any(word in done.stderr for word in ("lock", "currently used")) or time.monotonic() > deadline:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
        time.sleep(0.1)
