"""The backend Slurm at work: remote commands over the login, their answers as outcomes and observations.

Cost: one remote command a poll for all allocations, one a submission, one a cancellation. A fault of the login or of
Slurm is an answer (Unknown, Busy), never an exception.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from speedrun_operator.api.names import JOB_PREFIX
from speedrun_operator.backends.base import AllocationRef, Snapshot
from speedrun_operator.backends.slurm import commands, script
from speedrun_operator.backends.slurm.ledger import Memory, Poll, absorb, read_poll
from speedrun_operator.backends.slurm.package import pack
from speedrun_operator.backends.slurm.queue import epoch, parse_squeue
from speedrun_operator.lifecycle.observation import Accepted, Busy, JobState, Observed, Outcome, Rejected, Unknown
from speedrun_operator.login import Login
from speedrun_operator.login.errors import LoginError, NotRun
from speedrun_operator.planning import RunPlan

SUBMIT_SECONDS = 240.0  # sbatch retries by itself for about 150 s
POLL_SECONDS = 60.0
CANCEL_SECONDS = 60.0
POLL_OUTPUT = 2 * commands.POLL_BYTES
SLURM_SILENT = Unknown(
    "SlurmUnreachable", "squeue failed on the login node: slurmctld does not answer", reachable=False
)


@dataclass(frozen=True, slots=True)
class SlurmSite:
    """`root`: the ledgers' directory on the shared file system, `~/...` allowed. `python`: jobs' interpreter."""

    root: str
    python: str


class SlurmBackend:
    """Implements `backends.base.Backend`."""

    def __init__(
        self, login: Login, site: SlurmSite, cluster: str, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._login = login
        self._site = site
        self._cluster = cluster
        self._monotonic = monotonic
        self._memory: dict[str, Memory] = {}
        self._turn: deque[str] = deque()

    def name_of(self, ref: AllocationRef) -> str:
        return ref.identity.job_name(self._cluster, ref.allocation)

    def log_path(self, ref: AllocationRef) -> str:
        return f"{ref.identity.ledger(self._site.root, ref.allocation)}/{script.LOG}"

    async def submit(self, ref: AllocationRef, plan: RunPlan) -> Outcome:
        name = self.name_of(ref)
        batch = script.render(plan, ref.identity, ref.allocation, self._site.root, self._site.python).encode()
        package = pack(plan.package) if plan.package else b""
        nonce = secrets.token_hex(8)
        command = commands.submit(
            root=self._site.root,
            path=_path(ref),
            name=name,
            nonce=nonce,
            since=ref.since,
            arguments=script.sbatch_arguments(plan, ref.identity, name),
            sizes=(len(batch), len(package)),
        )
        try:
            done = await self._login.run(command, stdin=batch + package, timeout=SUBMIT_SECONDS)
        except NotRun as error:
            return Busy(error.reason.value, error.message, reachable=False)
        except LoginError as error:
            return Unknown(error.reason.value, error.message, reachable=False)
        answers = commands.sections(done.stdout, nonce)
        return _outcome(answers[-1].words if answers else (), done.stderr.decode(errors="replace"))

    async def observe(self, refs: Sequence[AllocationRef]) -> Snapshot:
        by_name = {self.name_of(ref): ref for ref in refs}
        order = self._in_turn(by_name)
        poll = await self._poll([by_name[name] for name in order])
        if isinstance(poll, Unknown):
            return Snapshot(error=poll)
        observed: dict[str, Observed] = {}
        now = self._monotonic()
        for name in order:
            memory = self._memory.get(name) or Memory(by_name[name].log_format)
            self._memory[name], seen = absorb(memory, poll, name, now)
            if seen is not None:
                observed[name] = seen
        if not poll.queue_known and not observed:
            return Snapshot(error=SLURM_SILENT)
        behind = any(self._memory[name].offset < self._memory[name].size for name in order)
        return Snapshot(observed=observed, behind=behind)

    async def cancel(self, refs: Sequence[AllocationRef]) -> Mapping[str, bool] | Unknown:
        nonce = secrets.token_hex(8)
        command = commands.cancel(root=self._site.root, prefix=self._prefix, nonce=nonce)
        asked = "".join(f"{self.name_of(ref)}\t{_path(ref)}\n" for ref in refs)
        try:
            done = await self._login.run(command, stdin=asked.encode(), timeout=CANCEL_SECONDS)
        except LoginError as error:
            return Unknown(error.reason.value, error.message, reachable=False)
        names = [self.name_of(ref) for ref in refs]
        found = commands.sections(done.stdout, nonce)
        words = [section.words for section in found]
        if ("squeue", "0") not in words or words[-1] != ("done",):
            return SLURM_SILENT
        live = {
            row.name
            for section in found
            if section.words == ("squeue", "0")
            for row in parse_squeue(section.body.decode(errors="replace"), self._prefix)
            if row.state is not JobState.ENDED
        }
        return {name: name not in live for name in names}

    def forget(self, name: str) -> None:
        self._memory.pop(name, None)

    async def close(self) -> None:
        await self._login.close()

    @property
    def _prefix(self) -> str:
        return f"{JOB_PREFIX}-{self._cluster}-"

    def _in_turn(self, by_name: Mapping[str, AllocationRef]) -> list[str]:
        """All names; each poll begins with another, so that a poll's byte budget starves nobody."""
        known = set(self._turn)
        self._turn = deque(name for name in self._turn if name in by_name)
        self._turn.extend(name for name in by_name if name not in known)
        self._turn.rotate(-1)
        return list(self._turn)

    async def _poll(self, refs: Sequence[AllocationRef]) -> Poll | Unknown:
        nonce = secrets.token_hex(8)
        names = [self.name_of(ref) for ref in refs]
        lines = []
        for name, ref in zip(names, refs, strict=True):
            memory = self._memory.get(name)
            lines.append(commands.poll_line(name, _path(ref), memory.offset if memory else 0, ref.since))
        command = commands.poll(root=self._site.root, prefix=self._prefix, nonce=nonce)
        try:
            done = await self._login.run(
                command, stdin="".join(lines).encode(), timeout=POLL_SECONDS, max_output=POLL_OUTPUT
            )
        except LoginError as error:
            return Unknown(error.reason.value, error.message, reachable=False)
        poll = read_poll(commands.sections(done.stdout, nonce), self._prefix, names)
        return poll or Unknown("AnswerIncomplete", "the poll's answer was not whole; it is asked again")


def _path(ref: AllocationRef) -> str:
    return ref.identity.ledger("", ref.allocation).lstrip("/")


def _outcome(words: Sequence[str], stderr: str) -> Outcome:
    said = _sbatch_text(stderr)
    match list(words):
        case ["accepted", job_id, *at] if job_id.isdecimal():
            return Accepted(job_id, epoch(at[0]) if at else None)
        case ["rejected"]:
            return Rejected("SubmissionRejected", f"sbatch refused the job: {said}")
        case ["busy"]:
            return Busy("SlurmBusy", f"sbatch could not take the job now: {said}")
        case ["unasked"]:
            return Busy("SlurmUnreachable", f"squeue failed, so nothing was submitted: {said}", reachable=False)
        case ["storage"]:
            return Busy("StorageUnwritable", "the ledger's directory on the shared file system cannot be written")
        case ["claimed", age]:
            left = max(0, commands.CLAIM_SECONDS - int(age)) if age.isdecimal() else commands.CLAIM_SECONDS
            return Unknown(
                "SubmissionUnknown",
                f"an earlier submission has no known outcome; looked up again until it is {left} s older",
            )
        case ["unknown", *_]:
            return Unknown("SubmissionUnknown", f"sbatch did not say whether it took the job: {said}")
        case _:
            return Unknown("AnswerIncomplete", "the submission's answer was not whole; it is looked up")


def _sbatch_text(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return "; ".join(lines[-3:])[:500] or "it printed no reason"
