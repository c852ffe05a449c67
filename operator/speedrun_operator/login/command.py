"""One framed command on one channel: sends the request, collects the answer, says how it ended.

The channel's life and the answer's are two things: the answer is complete with both closing marks, though a process
left behind may hold the channel; and the server counts the session until the channel is closed, though the caller
has long gone. `result` is the answer, `closed` the channel.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Any

import asyncssh

from .errors import LoginError, NotRun, OutcomeUnknown, Reason
from .frame import Request, Scanner

STDERR_KEPT = 64 * 1024  # bytes; the rest is dropped, because the first error is the one that tells


@dataclass(frozen=True)
class Completed:
    """A command that ran to its end. `stdout` is exact, `stderr` too but for what is over 64 KiB.

    `exit_code` is the script's, 0 to 255; 128 + n where signal n ended it.
    """

    stdout: bytes
    stderr: bytes
    exit_code: int


class CommandSession(asyncssh.SSHClientSession[bytes]):
    """asyncssh calls the methods below as things happen on the channel; all run in the event loop."""

    def __init__(self, request: Request, *, max_output: int, loop: asyncio.AbstractEventLoop) -> None:
        self.result: asyncio.Future[Completed] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self._request = request
        self._max_output = max_output
        self._stdout = Scanner(request.nonce, limit=max_output)
        self._stderr = Scanner(request.nonce, limit=STDERR_KEPT)
        self._channel: asyncssh.SSHClientChannel[bytes] | None = None
        self._abandoned = False
        self._aborted = False
        self._status: int | None = None
        self._signal: str | None = None

    def abandon(self) -> None:
        """Nobody waits for this command any more: end what runs of it, and its channel; the connection stays."""
        self._abandoned = True
        self.result.cancel()
        self._kill()

    def opening_ended(self, opening: asyncio.Future[Any]) -> None:
        """The attempt to open the channel is over, well or not, perhaps after everybody left."""
        failed = opening.cancelled() or opening.exception() is not None
        if failed and self._channel is None:
            self._set_closed()
        elif self._abandoned:
            self._kill()

    def unknown(self, reason: Reason, message: str) -> OutcomeUnknown:
        """A failure of this command, with the output that it has given so far."""
        return OutcomeUnknown(reason, message, stdout=self._stdout.content, stderr=self._stderr.content)

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        self._channel = chan

    def session_started(self) -> None:
        # An abandoned request is never sent, so that its caller's NotRun is true.
        if self._channel is None or self._abandoned:
            return
        # The server may have closed the channel already, its goodbye behind its consent: connection_lost says how.
        with contextlib.suppress(BrokenPipeError):
            self._channel.write(self._request.payload)
            self._channel.write_eof()

    def data_received(self, data: bytes, datatype: int | None) -> None:
        (self._stdout if datatype is None else self._stderr).feed(data)
        if self.result.done():
            return
        if self._stdout.overflow:
            self._fail(
                self.unknown(
                    Reason.OUTPUT_TOO_LARGE,
                    f"The command printed more than the {self._max_output} bytes allowed; it was ended. "
                    "Ask for less at a time.",
                )
            )
        elif self._stdout.exit_code is not None and self._stderr.exit_code is not None:
            self.result.set_result(Completed(self._stdout.content, self._stderr.content, self._stdout.exit_code))
            self._abort()

    def eof_received(self) -> bool:
        return True  # the channel's close is what ends it

    def exit_status_received(self, status: int) -> None:
        self._status = status

    def exit_signal_received(self, signal: str, core_dumped: bool, msg: str, lang: str) -> None:
        self._signal = signal

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.result.done():
            self._fail(self._ending(exc))
        self._set_closed()

    def _ending(self, exc: Exception | None) -> LoginError:
        """Why the channel closed before the answer was complete."""
        ended_by_itself = self._status is not None or self._signal is not None
        if exc is not None or not ended_by_itself:
            return self.unknown(
                Reason.CONNECTION_LOST,
                f"The connection to the login service ended before the command's answer did ({exc or 'closed'}).",
            )
        how = f"signal {self._signal}" if self._signal else f"exit status {self._status}"
        if not self._stdout.opened:
            said = _printable(self._stderr.noise or self._stdout.noise)
            return NotRun(
                Reason.SHELL_UNAVAILABLE,
                f"Logged in, but the account did not run bash ({how}{', it said: ' + said if said else ''}). "
                "The login shell must run commands, /bin/bash must be there (4.2 or newer), and the shell's start-up "
                "files must not read the standard input.",
            )
        if self._signal:
            return self.unknown(Reason.COMMAND_KILLED, f"Signal {self._signal} ended the command's shell.")
        return self.unknown(Reason.ANSWER_INCOMPLETE, f"The command's shell ended without closing its answer ({how}).")

    def _fail(self, error: LoginError) -> None:
        self.result.set_exception(error)
        self._kill()

    def _kill(self) -> None:
        if self._channel is not None and not self._aborted:
            self._channel.send_signal("TERM")  # sshd passes it to the whole process group of the command
        self._abort()

    def _abort(self) -> None:
        # close() would first wait until the command has taken all input, which it may never do.
        if self._channel is not None and not self._aborted:
            self._aborted = True
            self._channel.abort()

    def _set_closed(self) -> None:
        if not self.closed.done():
            self.closed.set_result(None)


def _printable(data: bytes) -> str:
    text = " ".join(data.decode(errors="replace").split())
    return "".join(character for character in text if character.isprintable())[:200]
