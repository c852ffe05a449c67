"""What Slurm's accounting keeps between starts: MariaDB's data, Slurm's user in it, the cluster and its accounts."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence

from testbed.processes import StartFailed
from testbed.slurm_config import CLUSTER, Paths

ACCOUNT = "default"


def make_database(paths: Paths) -> None:
    """Make MariaDB's data directory if it is not complete. Raises StartFailed."""
    complete = paths.database / "complete"
    if complete.exists():
        return
    data = paths.database / "data"
    shutil.rmtree(data, ignore_errors=True)
    log = paths.log / "mariadb-install-db.out"
    options = ["--auth-root-authentication-method=socket", "--skip-test-db"]
    argv = ["mariadb-install-db", "--no-defaults", "--user=mysql", f"--datadir={data}", *options]
    with log.open("ab") as out:
        made = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, check=False)
    if made.returncode != 0:
        raise StartFailed("mariadbd", "its data directory could not be made", log)
    complete.touch()


def let_slurm_in(paths: Paths) -> None:
    """Let the system's user slurm use the running MariaDB, without a password. Raises StartFailed."""
    statements = (
        "create user if not exists slurm@localhost identified via unix_socket;"
        "grant all on slurm_acct_db.* to slurm@localhost"
    )
    argv = ["mariadb", "--no-defaults", "-S", str(paths.database_socket), "-e", statements]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise StartFailed("mariadbd", f"Slurm's database user could not be made: {done.stderr.strip()}")


def make_accounts(paths: Paths, names: Sequence[str], command: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """Tell the running slurmdbd of the cluster and give each user an account, once: it takes a second or two.

    `command` runs one of Slurm's commands. Raises StartFailed.
    """
    known = paths.database / "accounts"
    wanted = "\n".join(names)
    if known.exists() and known.read_text() == wanted:
        return
    command("sacctmgr", "-i", "add", "cluster", CLUSTER)
    command("sacctmgr", "-i", "add", "account", ACCOUNT, f"Cluster={CLUSTER}")
    command("sacctmgr", "-i", "add", "user", ",".join(names), f"Account={ACCOUNT}")
    listed = command("sacctmgr", "-nP", "list", "associations", f"Account={ACCOUNT}", "format=user")
    if missing := sorted(set(names) - set(listed.stdout.split())):
        why = f"no account could be made for {', '.join(missing)}: {listed.stderr.strip()}"
        raise StartFailed("slurmdbd", why, paths.log / "slurmdbd.log")
    known.write_text(wanted)
