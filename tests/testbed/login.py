"""The login service: a real sshd on loopback through which the cluster's users come, and nothing else.

It knows no passwords; each user has a key, and both of a user's names (users) take it. The host key is pinned in
a known_hosts file; a second one is there for tests of a host key that changed. Stopping, pausing and dropping
sessions are what a gateway may do to its clients.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from testbed import leftovers, ports, slurm_config, users
from testbed.part import Place
from testbed.processes import StartFailed, start_ticks
from testbed.users import remove_users

__all__ = ["HOST_KEYS", "Login", "Settings", "remove_users"]

HOST_KEYS = ("host", "other_host")
ALIAS = "training"
SESSION = re.compile(rf"sshd: ([\w-]+\.)?({'|'.join(users.NAMES)})[ @]")


@dataclass(frozen=True)
class Settings:
    """What tests may change of sshd. `max_sessions` is the limit of commands at once on one connection."""

    max_sessions: int = 10
    host_key: str = HOST_KEYS[0]


class Login:
    """The login part of a bed. Its process is named sshd."""

    name = "login"

    def __init__(self, place: Place) -> None:
        self.place = place
        self.root = place.state / "login"
        self.known_hosts = self.root / "known_hosts"
        self.ssh_config = self.root / "ssh_config"
        self.slurm_conf = slurm_config.Paths(place.state / "slurm", place.logs / "slurm").conf

    def up(self) -> dict[str, str]:
        """Start sshd and write what a client needs. Raises StartFailed with sshd's log."""
        self.down()
        self.root.mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o755)
        accounts = users.ensure(self.place)
        for name in HOST_KEYS:
            self._make_key(self._host_key(name))
        for user in accounts:
            key = self.key(user.name)
            self._make_key(key)
            for name in (user.name, user.login):
                shutil.copyfile(key.with_suffix(".pub"), self.root / f"authorized.{name}")
        port = ports.kept_ports(self.root / "ports.json", ["sshd"])["sshd"]
        self._pin_host_key(port)
        self._write_ssh_config(port, accounts)
        self._write_settings(Settings())
        self.start()
        return {
            "ssh_host": "127.0.0.1",
            "ssh_port": str(port),
            "ssh_user": accounts[0].login,
            "ssh_key": str(self.key(accounts[0].name)),
            "ssh_known_hosts": str(self.known_hosts),
            "ssh_config": str(self.ssh_config),
        }

    def down(self) -> None:
        """Stop sshd and end its sessions."""
        self.stop()
        self.drop_sessions()

    def key(self, name: str) -> Path:
        """The private key of a user, one of users.NAMES."""
        return self.root / f"id_{name}"

    @property
    def port(self) -> int:
        """The port that sshd has on 127.0.0.1."""
        return ports.read_ports(self.root / "ports.json")["sshd"]

    # -- what may happen to a login service

    def start(self) -> None:
        """Start sshd, which must be down, and wait until it answers."""
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd refuses to start without
        port = self.port
        log = self.place.logs / "sshd.log"
        argv = ("/usr/sbin/sshd", "-D", "-e", "-f", self.root / "sshd_config")
        self.place.processes.start("sshd", argv, log=log)
        self.place.processes.ready("sshd", lambda: ports.answers(port), timeout=20)

    def stop(self) -> None:
        """Refuse new connections; open sessions go on."""
        self.place.processes.stop("sshd")

    def pause(self) -> None:
        """Freeze sshd and every open session: connections stand, nothing answers, until `resume`."""
        self.place.processes.signal("sshd", signal.SIGSTOP)
        self._signal_sessions(signal.SIGSTOP)

    def pause_sessions(self, user: str) -> None:
        """Freeze one user's open sessions, until `resume`; others go on."""
        self._signal_sessions(signal.SIGSTOP, user)

    def resume(self) -> None:
        """Let a paused sshd and its sessions go on."""
        self.place.processes.signal("sshd", signal.SIGCONT)
        self._signal_sessions(signal.SIGCONT)

    def drop_sessions(self, user: str = "") -> None:
        """Close every open session, or those of one user, as a gateway may at any time; sshd takes new ones."""
        leftovers.end(lambda: self._sessions(user))

    def authorize(self, user: str, *public: str) -> None:
        """Let a user in with these keys and no others, under both of its names."""
        for name in (user, f"{users.CLUSTER_ID}.{user}"):
            (self.root / f"authorized.{name}").write_text("".join(f"{each}\n" for each in public))

    def use_host_key(self, name: str) -> None:
        """Restart sshd with another host key, one of HOST_KEYS. known_hosts stays as it is."""
        if name not in HOST_KEYS:
            raise ValueError(f"unknown host key {name!r}: choose one of {', '.join(HOST_KEYS)}")
        self._restart(replace(self._settings(), host_key=name))

    def limit_sessions(self, count: int) -> None:
        """Restart sshd so that one connection carries at most `count` commands at once."""
        self._restart(replace(self._settings(), max_sessions=count))

    def heal(self) -> None:
        """Undo what the above did: sshd runs as `up` started it, with no open session."""
        self.down()
        self._write_settings(Settings())
        self.start()

    # -- files

    def _restart(self, settings: Settings) -> None:
        self.stop()
        self._write_settings(settings)
        self.start()

    def _settings(self) -> Settings:
        return Settings(**json.loads((self.root / "settings.json").read_text()))

    def _write_settings(self, settings: Settings) -> None:
        (self.root / "settings.json").write_text(json.dumps(asdict(settings)))
        # StrictModes would refuse a state directory below one that all may write to; SetEnv lets every command of
        # a user find this bed's Slurm.
        (self.root / "sshd_config").write_text(f"""\
Port {self.port}
ListenAddress 127.0.0.1
HostKey {self._host_key(settings.host_key)}
PidFile none
AuthorizedKeysFile {self.root}/authorized.%u
AllowUsers {" ".join(f"{name} *.{name}" for name in users.NAMES)}
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin no
UsePAM no
StrictModes no
PrintMotd no
X11Forwarding no
AllowTcpForwarding local
MaxSessions {settings.max_sessions}
MaxStartups 100:30:200
LoginGraceTime 30
SetEnv SLURM_CONF={self.slurm_conf}
Subsystem sftp internal-sftp
""")

    def _host_key(self, name: str) -> Path:
        return self.root / f"{name}_ed25519"

    def _make_key(self, path: Path) -> None:
        if path.exists() and path.with_name(f"{path.name}.pub").exists():
            return
        path.unlink(missing_ok=True)
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "speedrun-testbed", "-f", str(path)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise StartFailed("login", f"ssh-keygen could not make {path}: {done.stderr.strip()}")

    def _pin_host_key(self, port: int) -> None:
        public = self._host_key(HOST_KEYS[0]).with_suffix(".pub").read_text().split()
        self.known_hosts.write_text(f"[127.0.0.1]:{port} {public[0]} {public[1]}\n")

    def _write_ssh_config(self, port: int, accounts: list[users.User]) -> None:
        hosts = [(ALIAS, accounts[0]), *((f"{ALIAS}-{user.name}", user) for user in accounts)]
        self.ssh_config.write_text(
            "\n".join(
                f"""\
Host {alias}
  HostName 127.0.0.1
  Port {port}
  User {user.login}
  IdentityFile {self.key(user.name)}
  IdentitiesOnly yes
  UserKnownHostsFile {self.known_hosts}
  StrictHostKeyChecking yes
"""
                for alias, user in hosts
            )
        )

    # -- sessions

    def _sessions(self, user: str = "") -> list[int]:
        """Pids of the processes that serve open connections, or one user's: sshd names each after its user."""
        pids = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or start_ticks(int(entry.name)) is None:
                continue
            try:
                title = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if (found := SESSION.match(title)) and user in ("", found[2]):
                pids.append(int(entry.name))
        return pids

    def _signal_sessions(self, number: signal.Signals, user: str = "") -> None:
        for pid in self._sessions(user):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
