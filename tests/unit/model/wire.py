"""The connection to the login service, as it may fail: what a command becomes before, while, and after it runs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from speedrun_operator.login import Completed, Health, NotRun, OutcomeUnknown
from speedrun_operator.login.errors import Reason
from unit.model.output import Output
from unit.model.shell import Shell

FATES = (
    *("refused", "starting", "cut before", "cut while sent", "cut after", "left", "lost"),
    *("empty", "torn", "slow", "cut at 1", "cut at 2", "cut at 3", "cut at 4", "cut at 5"),
)
SLOW = 170.0


@dataclass
class Wire:
    """The network. `fates`: what becomes of the next commands; `down`: nothing gets through. `lives_on`: a command
    whose caller has gone runs on."""

    shell: Shell
    fates: list[str] = field(default_factory=list)
    down: bool = False
    lives_on: bool = True
    sent: int = 0
    at_work: int = 0


class ModelLogin:
    """In the place of `login.Login`."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.dead = False

    async def run(
        self,
        script: str,
        *,
        stdin: bytes = b"",
        timeout: float,  # noqa: ASYNC109 (Login's own signature)
        max_output: int = 0,
    ) -> Completed:
        if self.dead:
            raise asyncio.CancelledError
        self._wire.sent += 1
        fate = "refused" if self._wire.down else self._wire.fates.pop(0) if self._wire.fates else "works"
        if fate in ("refused", "starting"):
            await asyncio.sleep(min(timeout, 20 if fate == "starting" else 0.1))
            raise NotRun(Reason.LOGIN_STARTING if fate == "starting" else Reason.LOGIN_UNREACHABLE, fate)
        if fate == "cut before" or (fate == "cut while sent" and not stdin):  # half a script does not run
            await asyncio.sleep(1)
            raise OutcomeUnknown(Reason.CONNECTION_LOST, fate)
        cut_at = int(fate.removeprefix("cut at ")) if fate.startswith("cut at") else None
        output = Output(script.split("nonce=", 1)[1].split("\n", 1)[0])
        sent = stdin[: stdin.rfind(b"\n", 0, len(stdin) // 2) + 1] if fate == "cut while sent" else stdin
        work = asyncio.create_task(self._remote(script, sent, output, cut_at, fate))
        try:
            await asyncio.wait_for(asyncio.shield(work), 1 if fate == "left" else timeout)
        except TimeoutError:
            reason = Reason.CONNECTION_LOST if fate == "left" else Reason.COMMAND_TIMEOUT
            raise OutcomeUnknown(reason, fate) from None
        except asyncio.CancelledError:
            if not self._wire.lives_on:
                work.cancel()
            raise
        return self._answer(fate, output, cut_at)

    async def _remote(self, script: str, stdin: bytes, output: Output, cut_at: int | None, fate: str) -> None:
        steps = 0

        async def pause() -> None:
            nonlocal steps
            steps += 1
            if steps == cut_at:
                raise ConnectionResetError
            await asyncio.sleep(0.02)

        self._wire.at_work += 1
        try:
            await asyncio.sleep(SLOW if fate == "slow" else 0)
            await self._wire.shell.run(script, stdin, pause, output)
        except ConnectionResetError:
            return
        finally:
            self._wire.at_work -= 1
        if fate == "lost":
            await asyncio.sleep(10**4)

    def _answer(self, fate: str, output: Output, cut_at: int | None) -> Completed:
        if fate in ("cut after", "cut while sent") or cut_at is not None:
            raise OutcomeUnknown(Reason.CONNECTION_LOST, fate, stdout=output.stdout)
        stdout = output.stdout
        if fate == "empty":
            stdout = b""
        elif fate == "torn":
            stdout = stdout[: len(stdout) * 2 // 3]
        return Completed(stdout, output.stderr, 0)

    def health(self) -> Health:
        return Health("connected", None, None, 0.0, None, None, 1, 0, self._wire.sent, 0, 0, 0)

    async def close(self) -> None:
        self.dead = True
