"""The backend Slurm at work: remote commands over the login, their answers as outcomes and observations.

Cost: one remote command a poll for all allocations, one for up to 50 submissions, one a cancellation. A fault of the
login or of Slurm is an answer (Unknown, Busy), never an exception.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from speedrun_operator.api.names import JOB_PREFIX
from speedrun_operator.backends.base import AllocationRef, MarkedJob, PrepareJob, PrepareRef, Snapshot
from speedrun_operator.backends.cache_text import CACHE
from speedrun_operator.backends.reading import Reading
from speedrun_operator.backends.slurm import commands, facts, prepare, script
from speedrun_operator.backends.slurm.answer import Poll, read_poll
from speedrun_operator.backends.slurm.housekeeping import Housekeeper
from speedrun_operator.backends.slurm.ledger import Memory, absorb
from speedrun_operator.backends.slurm.outcome import last_lines, read_preparation
from speedrun_operator.backends.slurm.pace import Pace
from speedrun_operator.backends.slurm.parcel import parcel
from speedrun_operator.backends.slurm.prepare import Limits
from speedrun_operator.backends.slurm.queue import parse_marked, parse_preparing, parse_squeue
from speedrun_operator.backends.slurm.submitter import LIMITED, Submitter
from speedrun_operator.facts import ClusterFacts
from speedrun_operator.lifecycle.observation import Busy, JobState, Observed, Outcome, Prepared, PrepareOutcome, Unknown
from speedrun_operator.lifecycle.situation import Ask
from speedrun_operator.login import Login
from speedrun_operator.login.errors import LoginError, NotRun
from speedrun_operator.planning import RunPlan

POLL_SECONDS = 60.0
CANCEL_SECONDS = 60.0
FACTS_SECONDS = 60.0
STORAGE_SECONDS = 60.0  # how full the storage is, is asked in a poll so often
PREPARE_SECONDS = 240.0
DEFAULT_FORMAT = "modded-nanogpt"
POLL_OUTPUT = 2 * commands.POLL_BYTES


@dataclass(frozen=True, slots=True)
class SlurmSite:
    """`root`: the ledgers' directory on the shared file system, `~/...` allowed. `python`: jobs' interpreter.

    `scope`: which namespaces this operator watches; only an operator that sees the same ends a job that prepares.
    """

    root: str
    python: str
    prepare: Limits = field(default_factory=Limits)
    scope: str = "all"


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a poll asks about: a ledger below the root, and the cache entry that its job makes, if it makes one."""

    path: str
    since: datetime
    log_format: str
    entry: str = ""


class SlurmBackend:
    """Implements `backends.base.Backend`."""

    def __init__(
        self,
        login: Login,
        site: SlurmSite,
        cluster: str,
        *,
        log_bytes: int | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`cluster`: the eight characters of job names. `log_bytes`: what one poll reads of one log at most."""
        self._login = login
        self._site = site
        self._cluster = cluster
        self._log_bytes = log_bytes
        self._monotonic = monotonic
        self._pace = Pace(monotonic=monotonic)
        self._submitter = Submitter(login, site.root, self._pace)
        self._memory: dict[str, Memory] = {}
        self._turn: deque[str] = deque()
        self._storage_due = -math.inf

    @property
    def login(self) -> Login:
        """Its connection, for what else is asked of the same login node."""
        return self._login

    def name_of(self, ref: AllocationRef) -> str:
        return ref.identity.job_name(self._cluster, ref.allocation)

    def log_path(self, ref: AllocationRef) -> str:
        return f"{ref.identity.ledger(self._site.root, ref.allocation)}/{script.LOG}"

    async def submit(self, ref: AllocationRef, plan: RunPlan) -> Outcome:
        name = self.name_of(ref)
        return await self._submitter.submit(
            commands.Submission(
                name=name,
                path=_path(ref),
                since=ref.since,
                arguments=script.sbatch_arguments(plan, ref.identity, name),
                script=script.render(plan, ref.identity, ref.allocation, self._site.root, self._site.python),
                package=parcel(plan),
            )
        )

    async def prepare(self, ask: Ask, plan: RunPlan) -> PrepareOutcome:
        if self._pace.rest() > 0:
            return LIMITED
        need, package = ask.need, parcel(replace(plan, package=None))
        nonce = secrets.token_hex(8)
        command = commands.prepare(
            root=self._site.root,
            nonce=nonce,
            need=need,
            prefix=prepare.job_prefix(self._cluster, need.key),
            after=ask.after,
            since=datetime.now(UTC),
            arguments=prepare.arguments(plan, self._site.prepare, self._site.scope, ask.avoid),
            script=prepare.render(plan, need, self._site.root, self._site.python),
            package=len(package),
        )
        try:
            done = await self._login.run(command, stdin=package, timeout=PREPARE_SECONDS)
        except NotRun as error:
            return Busy(error.reason.value, error.message, reachable=False)
        except LoginError as error:
            return Unknown(error.reason.value, error.message, reachable=False)
        return read_preparation(commands.sections(done.stdout, nonce), done.stderr.decode(errors="replace"))

    async def observe(self, refs: Sequence[AllocationRef], preparing: Sequence[PrepareRef] = ()) -> Snapshot:
        by_name = {self.name_of(ref): _Asked(_path(ref), ref.since, ref.log_format) for ref in refs}
        makes = {f"{prepare.job_prefix(self._cluster, ref.key)}{ref.attempt}": ref for ref in preparing}
        for name, made in makes.items():
            path, entry = f"{prepare.attempts(made.key)}/try-{made.attempt}", f"{CACHE}/{made.kind}/{made.key}"
            by_name[name] = _Asked(path, made.since, DEFAULT_FORMAT, entry)
        order = self._in_turn(by_name)
        for name, asked in by_name.items():
            self._memory.setdefault(name, Memory(Reading(asked.log_format)))
        poll = await self._poll({name: by_name[name] for name in order})
        kept = [name for name in order if name in self._memory]  # the others were forgotten meanwhile
        if isinstance(poll, Unknown):
            self._memory |= {name: self._memory[name].unanswered() for name in kept}
            return Snapshot(error=poll, rest=self._pace.rest())
        self._pace.answered()
        observed: dict[str, Observed] = {}
        now = self._monotonic()
        for name in kept:
            self._memory[name], observed[name] = absorb(self._memory[name], poll, name, now)
        prepared = {
            ref.key: Prepared(observed.pop(name), poll.entries.get(name))
            for name, ref in makes.items()
            if name in observed
        }
        self._forget_made(makes)
        return Snapshot(
            observed=observed,
            prepared=prepared,
            storage=poll.storage,
            behind=any(self._memory[name].behind for name in kept),
        )

    async def changed(self, seconds: float) -> frozenset[str] | None:
        await asyncio.sleep(seconds)
        return None

    async def cancel(self, refs: Sequence[AllocationRef]) -> Mapping[str, bool] | Unknown:
        nonce = secrets.token_hex(8)
        command = commands.cancel(root=self._site.root, prefix=self._prefix, nonce=nonce)
        asked = "".join(commands.cancel_line(self.name_of(ref), _path(ref)) for ref in refs)
        try:
            done = await self._login.run(command, stdin=asked.encode(), timeout=CANCEL_SECONDS)
        except LoginError as error:
            return Unknown(error.reason.value, error.message, reachable=False)
        names = [self.name_of(ref) for ref in refs]
        found = commands.sections(done.stdout, nonce)
        words = [section.words for section in found]
        if ("squeue", "0") not in words or words[-1] != ("done",):
            return _silent(done.stderr)
        live = {
            row.name
            for section in found
            if section.words == ("squeue", "0")
            for row in parse_squeue(section.body.decode(errors="replace"), self._prefix)
            if row.state is not JobState.ENDED
        }
        # Without its fence, a submission that is still under way could yet make a job of it.
        live |= {section.words[1] for section in found if section.words[0] == "open"}
        return {name: name not in live for name in names}

    async def jobs(self) -> Sequence[MarkedJob | PrepareJob] | Unknown:
        nonce = secrets.token_hex(8)
        try:
            done = await self._login.run(commands.jobs(prefix=self._prefix, nonce=nonce), timeout=POLL_SECONDS)
        except LoginError as error:
            return Unknown(error.reason.value, error.message, reachable=False)
        found = commands.sections(done.stdout, nonce)
        if [section.words for section in found] != [("squeue", "0"), ("done",)]:
            return _silent(done.stderr)
        said = found[0].body.decode(errors="replace")
        return [*parse_marked(said, self._prefix), *parse_preparing(said, commands.preparing(self._prefix))]

    async def cancel_jobs(self, jobs: Sequence[MarkedJob | PrepareJob]) -> Unknown | None:
        nonce = secrets.token_hex(8)
        made = [job for job in jobs if isinstance(job, PrepareJob)]
        command = commands.cancel_jobs(
            [(job.id, job.name) for job in jobs],
            root=self._site.root,
            ledgers=[f"{prepare.attempts(job.key)}/try-{job.name.rpartition('-')[2]}" for job in made],
            nonce=nonce,
        )
        try:
            await self._login.run(command, timeout=CANCEL_SECONDS)
        except LoginError as error:
            return Unknown(error.reason.value, error.message, reachable=False)
        return None

    async def facts(self) -> ClusterFacts | Unknown:
        nonce = secrets.token_hex(8)
        try:
            done = await self._login.run(facts.command(root=self._site.root, nonce=nonce), timeout=FACTS_SECONDS)
        except LoginError as error:
            return Unknown(error.reason.value, error.message, reachable=False)
        found = facts.read(commands.sections(done.stdout, nonce))
        return found if found is not None else _silent(done.stderr, "sinfo")

    def housekeeper(self) -> Housekeeper:
        """Looks after the storage over the same connection."""
        return Housekeeper(self._login, self._site.root)

    def forget(self, name: str) -> None:
        self._memory.pop(name, None)

    async def close(self) -> None:
        await self._submitter.close()
        await self._login.close()

    @property
    def remote_commands(self) -> int:
        """Commands sent to the login service since the start, whatever became of them."""
        health = self._login.health()
        return health.commands + health.commands_not_run + health.commands_unknown

    @property
    def _prefix(self) -> str:
        return f"{JOB_PREFIX}-{self._cluster}-"

    def _forget_made(self, makes: Mapping[str, PrepareRef]) -> None:
        """Drop what is remembered of jobs that prepared and that nobody asks about any more."""
        prefix = commands.preparing(self._prefix)
        for name in [each for each in self._memory if each.startswith(prefix) and each not in makes]:
            del self._memory[name]

    def _in_turn(self, by_name: Mapping[str, _Asked]) -> list[str]:
        """All names; each poll begins with another, so that a poll's byte budget starves nobody."""
        known = set(self._turn)
        self._turn = deque(name for name in self._turn if name in by_name)
        self._turn.extend(name for name in by_name if name not in known)
        self._turn.rotate(-1)
        return list(self._turn)

    async def _poll(self, asked: Mapping[str, _Asked]) -> Poll | Unknown:
        nonce = secrets.token_hex(8)
        lines = [
            commands.poll_line(name, each.path, self._memory[name].reading.offset, each.since, each.entry)
            for name, each in asked.items()
        ]
        most = self._log_bytes or commands.share(len(asked))
        now = self._monotonic()
        storage = now >= self._storage_due
        command = commands.poll(root=self._site.root, prefix=self._prefix, nonce=nonce, log_bytes=most, storage=storage)
        try:
            done = await self._login.run(
                command, stdin="".join(lines).encode(), timeout=POLL_SECONDS, max_output=POLL_OUTPUT
            )
        except LoginError as error:
            return Unknown(error.reason.value, error.message, reachable=False)
        prefixes = (self._prefix, commands.preparing(self._prefix))
        poll = read_poll(commands.sections(done.stdout, nonce), prefixes, [*asked])
        if poll is None:
            return Unknown("AnswerIncomplete", "the poll's answer was not whole; it is asked again")
        if storage:
            self._storage_due = now + STORAGE_SECONDS
        if not poll.queue_known:
            self._pace.heard(poll.said)
        return poll if poll.queue_known else _silent(poll.said.encode())


def _silent(stderr: bytes, program: str = "squeue") -> Unknown:
    said = last_lines(stderr.decode(errors="replace"))
    return Unknown("SlurmUnreachable", f"{program} failed on the login node: {said}", reachable=False)


def _path(ref: AllocationRef) -> str:
    return ref.identity.ledger("", ref.allocation).lstrip("/")
