"""The bed's users: ordinary accounts of this machine, made once, removed by `make clean`.

Each user is reached under two names: its own, and `<cluster-id>.<user>`, the name that the login service of a SUNK
cluster gives it. The second is one more passwd line with the same uid and home, as sshd sees no aliases.
"""

from __future__ import annotations

import pwd
import subprocess
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from testbed import leftovers
from testbed.part import SUFFIX, Place
from testbed.processes import StartFailed

CLUSTER_ID = "cl-1a2b3c4d"
NAMES = (f"srbed{SUFFIX}-alice", f"srbed{SUFFIX}-bob")
COMMENT = "speedrun test bed"


@dataclass(frozen=True)
class User:
    """One account. `login` is its second name, of the form <cluster-id>.<user>."""

    name: str
    uid: int
    gid: int
    home: Path
    login: str


def ensure(place: Place) -> list[User]:
    """The bed's users in the order of NAMES, made where absent. Raises StartFailed if one cannot be made."""
    users = []
    for name in NAMES:
        entry = _entry(name)
        if entry is None:
            place.say(f"users: making {name} and {CLUSTER_ID}.{name}")
            # The password `*` matches nothing; `!` would make sshd refuse the account as locked.
            _run("useradd", "-m", "-s", "/bin/bash", "-p", "*", "-c", COMMENT, name)
            entry = _entry(name)
            assert entry is not None
        elif entry.pw_gecos != COMMENT:
            raise StartFailed("users", f"an account {name} exists that the test bed did not make: rename or remove it")
        user = User(name, entry.pw_uid, entry.pw_gid, Path(entry.pw_dir), f"{CLUSTER_ID}.{name}")
        if _entry(user.login) is None:
            same = ("-M", "-o", "-u", str(user.uid), "-g", str(user.gid), "-d", str(user.home), "-s", "/bin/bash")
            _run("useradd", "--badname", *same, "-p", "*", "-c", COMMENT, user.login)
        users.append(user)
    return users


def uids() -> set[int]:
    """Uids of the bed's users that exist."""
    return {entry.pw_uid for name in NAMES if (entry := _entry(name)) is not None}


def remove_users(place: Place) -> None:
    """Remove the bed's users with their homes, and end what they still run. Accounts made by others stay."""
    for name in NAMES:
        entry = _entry(name)
        login = f"{CLUSTER_ID}.{name}"
        if _entry(login) is not None:
            _run("userdel", "-f", login)
        if entry is None or entry.pw_gecos != COMMENT:
            continue
        leftovers.end(partial(leftovers.of_user, entry.pw_uid))
        place.say(f"users: removing {name} and its home {entry.pw_dir}")
        _run("userdel", "-f", "-r", name)


def _entry(name: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


def _run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise StartFailed("users", f"`{' '.join(argv)}` failed: {done.stderr.strip() or done.stdout.strip()}")
