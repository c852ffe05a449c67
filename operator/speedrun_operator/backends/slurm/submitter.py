"""Gathers submissions into remote commands, without waiting: what comes while commands are under way goes next.

A lone submission goes at once; under load a command carries up to BATCH of them. Each item has an answer of its own.
An item without one is unknown; one that the command did not begin is sent again.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Mapping, Sequence

from speedrun_operator.backends.slurm import commands
from speedrun_operator.backends.slurm.commands import Submission
from speedrun_operator.backends.slurm.outcome import read_outcome
from speedrun_operator.backends.slurm.pace import Pace
from speedrun_operator.backends.slurm.queue import number
from speedrun_operator.lifecycle.observation import Accepted, Busy, Outcome, Unknown
from speedrun_operator.login import Login
from speedrun_operator.login.errors import LoginError, NotRun

BATCH = 50
AT_ONCE = 2  # one that hangs leaves a way for others
SECONDS = 240.0  # sbatch retries by itself for about 150 s, and the last one may begin after BATCH_SECONDS
LIMITED = Busy("SlurmBusy", "Slurm asks for fewer requests; the job is submitted a little later")
NOT_BEGUN = Busy("SlurmBusy", "Slurm could not take another job; this one is submitted a little later")


class Submitter:
    """For one login and one event loop."""

    def __init__(self, login: Login, root: str, pace: Pace) -> None:
        self._login = login
        self._root = root
        self._pace = pace
        self._waiting: deque[Submission] = deque()
        self._answers: dict[str, asyncio.Future[Outcome]] = {}
        self._commands: set[asyncio.Task[None]] = set()

    async def submit(self, item: Submission) -> Outcome:
        """Its outcome. Asked twice for one name at the same time, it submits once and tells both."""
        answer = self._answers.get(item.name)
        if answer is None:
            if self._pace.rest() > 0:
                return LIMITED
            answer = self._answers[item.name] = asyncio.get_running_loop().create_future()
            self._waiting.append(item)
            self._send()
        return await asyncio.shield(answer)

    async def close(self) -> None:
        """Give up what is under way."""
        for task in self._commands:
            task.cancel()
        await asyncio.gather(*self._commands, return_exceptions=True)

    def _send(self) -> None:
        while self._waiting and len(self._commands) < AT_ONCE:
            items = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
            task = asyncio.get_running_loop().create_task(self._command(items))
            self._commands.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._commands.discard(task)
        if self._pace.rest() > 0:
            while self._waiting:
                self._tell(self._waiting.popleft(), LIMITED)
        if not task.cancelled():
            self._send()

    def _tell(self, item: Submission, outcome: Outcome) -> None:
        answer = self._answers.pop(item.name)
        if not answer.done():
            answer.set_result(outcome)

    async def _command(self, items: Sequence[Submission]) -> None:
        outcomes: Mapping[int, Outcome | None] = {}
        missing: Outcome = Unknown("OperatorError", "submitting failed in the operator; it is looked up")
        try:
            outcomes, missing = await self._run(items)
        finally:
            again = []
            for index, item in enumerate(items):
                outcome = outcomes.get(index, missing)
                if outcome is None:
                    again.append(item)
                else:
                    self._tell(item, outcome)
            self._waiting.extendleft(reversed(again))

    async def _run(self, items: Sequence[Submission]) -> tuple[Mapping[int, Outcome | None], Outcome]:
        """The outcomes by index, and that of every item without one."""
        nonce = secrets.token_hex(8)
        command, stdin = commands.submit(root=self._root, nonce=nonce, items=items)
        try:
            done = await self._login.run(command, stdin=stdin, timeout=SECONDS)
        except NotRun as error:
            return {}, Busy(error.reason.value, error.message, reachable=False)
        except LoginError as error:
            missing = Unknown(error.reason.value, error.message, reachable=False)
            return self._outcomes(error.stdout, error.stderr, nonce), missing
        return self._outcomes(done.stdout, done.stderr, nonce), read_outcome((), "") or LIMITED

    def _outcomes(self, stdout: bytes, stderr: bytes, nonce: str) -> Mapping[int, Outcome | None]:
        outcomes: dict[int, Outcome | None] = {}
        not_begun: Outcome | None = None
        said = stderr.decode(errors="replace")
        for section in commands.sections(stdout, nonce):
            match section.words:
                case ("item", index, *words) if (at := number(index)) is not None:
                    text = section.body.decode(errors="replace").strip() or said
                    outcomes[at] = read_outcome(words, text) or not_begun
                    if isinstance(outcomes[at], Accepted):
                        self._pace.answered()
                    elif words[:1] in (["busy"], ["unknown"], ["unasked"]):
                        self._pace.heard(text)
                        not_begun = NOT_BEGUN
        return outcomes
