"""A login of a test's own on the bed's Slurm: its own account, sshd and slurm.conf, so that nothing that a test breaks
is anybody else's.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
from pathlib import Path

from cluster.login_sshd import LoginSshd
from contract.worlds import SlurmWorld
from speedrun_operator.backends.base import AllocationRef
from speedrun_operator.login import Completed, Login
from testbed import leftovers
from testbed.facts import Facts
from testbed.processes import free_ports

ACCOUNTING_OFF = {"AccountingStorageType": "accounting_storage/none", "AccountingStorageTRES": ""}


class PrivateSlurm(SlurmWorld):
    """A SlurmWorld whose login may be broken in any way."""

    def __init__(self, sshd: LoginSshd, bed: Facts, root: str | None = None, pace: float = 10) -> None:
        self.sshd = sshd
        self.private_conf = sshd.directory / "slurm.conf"
        self._bed_conf = bed.slurm_conf
        self.configure()
        sshd.start({"SetEnv": f"SLURM_CONF={self.private_conf}"})
        super().__init__(sshd.target(), bed.slurm_conf, root, pace)
        self._shell = Login(sshd.target())

    async def close(self) -> None:
        self.configure()
        await super().close()
        await self._shell.close()

    def configure(self, **changes: object) -> None:
        """Make the login's slurm.conf the bed's with other values; an empty one leaves the line out."""
        text = self._bed_conf.read_text()
        for key, value in changes.items():
            text = re.sub(rf"^{key}=.*\n", "", text, flags=re.MULTILINE)
            text += f"{key}={value}\n" if value != "" else ""
        self.private_conf.write_text(text)

    def port_of(self, key: str) -> int:
        """A port that the bed's slurm.conf names."""
        found = re.search(rf"^{key}=([0-9]+)$", self._bed_conf.read_text(), flags=re.MULTILINE)
        assert found, key
        return int(found[1])

    async def shell(self, command: str) -> Completed:
        """A command of the login user's own."""
        return await self._shell.run(command, timeout=60)

    async def ran(self, command: str) -> str:
        """What a command that must succeed prints."""
        done = await self.shell(command)
        assert done.exit_code == 0, done.stderr.decode()
        return done.stdout.decode()

    def profile(self, text: str) -> None:
        """Give the account a ~/.bashrc; it counts for connections opened after."""
        self.sshd.account.write(".bashrc", text)

    async def a_second_job(self, ref: AllocationRef, *options: str) -> str:
        """Submit an allocation's script again by hand, as a submission does that nobody knows of."""
        ledger = self.ledger(ref)
        name = self.backend.name_of(ref)
        command = (
            f"sbatch {' '.join(options)} --parsable --job-name={name} --open-mode=append --mem=64M --time=1 "
            f"--chdir='{ledger}' --output='{ledger}/log' '{ledger}/script.sh'"
        )
        return (await self.ran(command)).strip()

    def kill_script(self, job: str) -> None:
        """Kill what a job runs, its batch script first, as the node's kernel might."""
        uid = self.home.stat().st_uid
        of_job = [pid for pid in leftovers.with_environment(SLURM_JOB_ID=job) if leftovers.owner(pid) == uid]
        assert of_job, f"job {job} runs nothing"
        for pid in sorted(of_job):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def state(self, job: str) -> str:
        """A job's state by squeue, asked by root."""
        return self.slurm("squeue", "--noheader", "--states=all", "--format=%T", f"--jobs={job}").strip()

    async def job_ends(self, job: str) -> None:
        await self.eventually(
            f"job {job} ended", lambda: self.state(job) not in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING")
        )


def closed_port() -> int:
    """A loopback port where nobody listens."""
    return free_ports(1)[0]


def remove(path: Path) -> None:
    shutil.rmtree(path)
