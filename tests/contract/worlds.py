"""A place for each backend to run in, and what a test may do to it and see of it besides the backend's own word."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import subprocess
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from contract.wire import Wire
from speedrun_operator.api.names import Identity
from speedrun_operator.backends.base import AllocationRef, Backend
from speedrun_operator.backends.memory import Cluster, Job, MemoryBackend, Step
from speedrun_operator.backends.slurm.backend import SlurmBackend, SlurmSite
from speedrun_operator.lifecycle.observation import Outcome, Unknown
from speedrun_operator.login import Login, LoginTarget
from speedrun_operator.planning import RunPlan
from testbed.facts import Facts

HELD = "held"
NOWHERE = "compute-h200"  # a partition that no world has


class World(Protocol):
    """What the contract tests need of a place."""

    @property
    def backend(self) -> Backend: ...

    def another(self, *, log_bytes: int = 65536) -> Backend:
        """Another operator's backend on the same place."""
        ...

    async def passes(self) -> None:
        """Let a little time pass."""
        ...

    async def submit_unheard(self, ref: AllocationRef, plan: RunPlan) -> Outcome:
        """Submit so that the place takes the job and the answer is lost."""
        ...

    async def jobs(self, ref: AllocationRef) -> list[str]:
        """The numbers of all jobs that the place has for an allocation."""
        ...

    @property
    def refusal(self) -> str:
        """A word of the reason for which a job with `nowhere` is refused."""
        ...

    async def ref(self, name: str) -> AllocationRef:
        """The first allocation of a new Speedrun."""
        ...

    def somewhere(self) -> Mapping[str, Any]:
        """The fields of a spec that runs here."""
        ...

    def waits(self) -> Mapping[str, Any]:
        """The fields of a spec whose jobs stay queued."""
        ...

    def nowhere(self) -> Mapping[str, Any]:
        """The fields of a spec whose jobs are refused."""
        ...

    def log(self, ref: AllocationRef) -> bytes:
        """The log as it lies there."""
        ...

    def left(self, ref: AllocationRef) -> list[str]:
        """What there is of an allocation besides jobs."""
        ...

    def remote_commands(self) -> int | None:
        """How many commands `backend` has sent; None where it sends none."""
        ...

    def silence(self) -> AbstractAsyncContextManager[None]:
        """While it lasts, `backend` gets no answer."""
        ...


def replayed(plan: RunPlan) -> Iterable[Step]:
    """What a replay's job does, for the cluster in memory. In the partition HELD it waits."""
    if plan.partition == HELD:
        return ()
    given = dict(plan.parameters)
    steps = int(given["steps"])
    lines = [
        *("SPEEDRUN attempt job=1 node=node-0", "SPEEDRUN run=0 begin", "SPEEDRUN run=0 stage=train begin time=1.000"),
        *(f"step:{n}/{steps} train_time:{50 * n}ms step_avg:50.00ms" for n in range(1, steps + 1)),
        f"step:{steps}/{steps} val_loss:{given['valLoss']} train_time:{50 * steps}ms step_avg:50.00ms",
        *("SPEEDRUN run=0 stage=train end exit=0 time=2.000", "SPEEDRUN run=0 end exit=0", "SPEEDRUN job end exit=0"),
    ]
    writing = [lambda job, line=line: Job.write(job, f"{line}\n".encode()) for line in lines]
    return (Job.start, *writing, Job.end)


class MemoryWorld:
    """Implements World."""

    refusal = "partition"

    def __init__(self) -> None:
        self.cluster = Cluster(script=replayed, partitions=frozenset({"", HELD}))
        self.backend = MemoryBackend(self.cluster)

    def another(self, *, log_bytes: int = 65536) -> MemoryBackend:
        return MemoryBackend(self.cluster, log_bytes=log_bytes)

    async def passes(self) -> None:
        self.cluster.advance()

    async def submit_unheard(self, ref: AllocationRef, plan: RunPlan) -> Outcome:
        self.cluster.lost_answers += 1
        return await self.backend.submit(ref, plan)

    async def jobs(self, ref: AllocationRef) -> list[str]:
        job = self.cluster.jobs.get(self.backend.name_of(ref))
        return [job.job_id] if job else []

    async def ref(self, name: str) -> AllocationRef:
        return _a_ref(name)

    def somewhere(self) -> Mapping[str, Any]:
        return {}

    def waits(self) -> Mapping[str, Any]:
        return {"slurm": {"partition": HELD}}

    def nowhere(self) -> Mapping[str, Any]:
        return {"slurm": {"partition": NOWHERE}}

    def log(self, ref: AllocationRef) -> bytes:
        return self.cluster.jobs[self.backend.name_of(ref)].log

    def left(self, ref: AllocationRef) -> list[str]:
        return []

    def remote_commands(self) -> int | None:
        return None

    @asynccontextmanager
    async def silence(self) -> AsyncIterator[None]:
        self.cluster.silent = Unknown("ConnectionLost", "no answer", reachable=False)
        yield
        self.cluster.silent = None


class SlurmWorld:
    """Implements World on a real Slurm, as one login user, with job names and a root directory of its own.

    `target`: the login. Between it and the backends is a Wire. `conf`: the slurm.conf of the test's own look at the
    cluster, as root. For the backends' own waiting, time goes `pace` times as fast.
    """

    refusal = "partition"

    def __init__(self, target: LoginTarget, conf: Path, root: str | None = None, pace: float = 1) -> None:
        self.cluster = f"t{uuid.uuid4().hex[:7]}"
        self.root = root or f"~/speedruns-{self.cluster}"
        self.home = Path(pwd.getpwnam(target.user).pw_dir)
        self.wire = Wire(target.port)
        self._target, self._conf, self._pace = target, conf, pace
        self._partition = f"held-{self.cluster}"
        self._holds = False
        self._backends: list[SlurmBackend] = []

    async def open(self) -> None:
        await self.wire.open()
        self.backend = self.another()

    async def close(self) -> None:
        """End every job that was made here, and remove the directory."""
        for backend in self._backends:
            await backend.close()
        await self.wire.close()
        ids = [line.split("|")[0] for line in self._squeue("%i|%j", "--states=all") if f"|sr-{self.cluster}-" in line]
        if ids:
            self.slurm("scancel", *ids)
        await self.eventually("its jobs ended", lambda: not set(ids) & set(self._squeue("%i")))
        if self._holds:
            self.slurm("scontrol", "delete", f"PartitionName={self._partition}")
        shutil.rmtree(self.path(self.root), ignore_errors=True)

    def another(self, *, log_bytes: int = 65536, **changes: Any) -> SlurmBackend:
        known = f"[127.0.0.1]:{self.wire.port} " + " ".join(_host_key(self._target).split()[1:3])
        target = replace(self._target, port=self.wire.port, known_hosts=known, backoff_first=0.05, **changes)
        backend = SlurmBackend(
            Login(target),
            SlurmSite(self.root, "python3"),
            self.cluster,
            log_bytes=log_bytes,
            monotonic=lambda: self._pace * time.monotonic(),
        )
        self._backends.append(backend)
        return backend

    async def passes(self) -> None:
        await asyncio.sleep(0.1)

    async def ref(self, name: str) -> AllocationRef:
        return _a_ref(name)

    def somewhere(self) -> Mapping[str, Any]:
        return {}

    def nowhere(self) -> Mapping[str, Any]:
        return {"slurm": {"partition": NOWHERE}}

    async def submit_unheard(self, ref: AllocationRef, plan: RunPlan) -> Outcome:
        await self.backend.observe([])  # connects
        self.wire.deaf_after = 2000  # the opening of a channel is shorter, a submission longer
        submitting = asyncio.create_task(self.backend.submit(ref, plan))
        while not await self.jobs(ref):
            assert not submitting.done(), submitting.result()
            await asyncio.sleep(0.02)
        await self.eventually("the answer lost", lambda: self.wire.lost_bytes > 0)
        self.wire.cut()
        return await submitting

    async def jobs(self, ref: AllocationRef) -> list[str]:
        return await asyncio.to_thread(self.numbers, ref)

    def log(self, ref: AllocationRef) -> bytes:
        return (self.ledger(ref) / "log").read_bytes()

    def left(self, ref: AllocationRef) -> list[str]:
        return sorted(path.name for path in self.ledger(ref).glob("*"))

    def remote_commands(self) -> int | None:
        return self.backend.remote_commands

    @asynccontextmanager
    async def silence(self) -> AsyncIterator[None]:
        await self.wire.close()
        yield
        await self.wire.open()

    # -- what only Slurm has

    def waits(self) -> Mapping[str, Any]:
        return {"slurm": {"partition": self.held()}}

    def held(self) -> str:
        """A partition whose jobs stay queued until `release`."""
        if not self._holds:
            self.slurm("scontrol", "create", f"PartitionName={self._partition}", "Nodes=ALL", "State=DOWN")
        self._holds = True
        return self._partition

    def release(self) -> None:
        self.slurm("scontrol", "update", f"PartitionName={self._partition}", "State=UP")

    def numbers(self, ref: AllocationRef) -> list[str]:
        """The numbers of all jobs of an allocation that squeue knows, ended ones included."""
        return self._squeue("%i", "--states=all", f"--name={self.backend.name_of(ref)}")

    def ledger(self, ref: AllocationRef) -> Path:
        return self.path(ref.identity.ledger(self.root, ref.allocation))

    def path(self, path: str) -> Path:
        return self.home / path.removeprefix("~").removeprefix("/") if path.startswith("~") else Path(path)

    def slurm(self, *command: str) -> str:
        """A command of Slurm's, as root; what it prints."""
        env = {**os.environ, "SLURM_CONF": str(self._conf)}
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=60, check=False)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    async def eventually(self, what: str, holds: Callable[[], bool], limit: float = 30) -> None:
        deadline = time.monotonic() + limit
        while not await asyncio.to_thread(holds):
            assert time.monotonic() < deadline, f"{what}: not within {limit:g} s"
            await asyncio.sleep(0.05)

    def _squeue(self, form: str, *options: str) -> list[str]:
        return self.slurm("squeue", "--noheader", f"--format={form}", *options).split()


def _a_ref(name: str) -> AllocationRef:
    return AllocationRef(Identity("lab", name, str(uuid.uuid4())), 0, datetime.now(UTC), "modded-nanogpt")


def bed_login(bed: Facts) -> LoginTarget:
    """The login of the bed's first user."""
    return LoginTarget(
        host=bed.ssh_host, port=bed.ssh_port, user=bed.ssh_user, key=bed.ssh_key, known_hosts=bed.ssh_known_hosts
    )


def _host_key(target: LoginTarget) -> str:
    return target.known_hosts.read_text() if isinstance(target.known_hosts, Path) else target.known_hosts
