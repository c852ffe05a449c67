"""What can go wrong with a command on the login service, by what the caller must do.

    LoginError
    ├── NotRun            The command certainly did not start. Nothing to look up: run it again, not before
    │                     `retry_after` seconds; where the reason needs a person, show the message.
    │     LoginUnreachable            no such name, connection refused, no route
    │     LoginStarting               still connecting when the caller's time was up; the attempt goes on
    │     LoginTimeout                nothing answered in time: the connection, or a channel on it
    │     LoginBusy                   turned away: in key exchange, or no session left
    │     LoginHandshakeFailed        not an SSH server, or no common algorithm
    │     LoginAuthenticationFailed   the key or the user name is refused
    │     HostKeyMismatch             a person must look: another machine, or a new key
    │     HostKeyUnknown              known_hosts has no key for this host
    │     KnownHostsUnusable          known_hosts is missing or malformed
    │     LoginKeyUnusable            the private key is missing, unreadable, open to all, encrypted or no key
    │     ShellUnavailable            logged in, but the account did not start bash
    │     LoginClosed                 this process is ending
    └── OutcomeUnknown    The command may have run, wholly, partly or not. Look at what it would have changed
                          before running it again.
          ConnectionLost              the connection ended before the answer did
          CommandTimeout              no complete answer in time
          CommandKilled               a signal ended the remote shell
          AnswerIncomplete            the remote shell ended without closing its answer
          OutputTooLarge              more output than the caller allowed

Cancelling the caller raises neither: it is asyncio.CancelledError, and the outcome is as unknown.
"""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """One word a cause, fit for a condition's `reason`."""

    LOGIN_UNREACHABLE = "LoginUnreachable"
    LOGIN_STARTING = "LoginStarting"
    LOGIN_TIMEOUT = "LoginTimeout"
    LOGIN_BUSY = "LoginBusy"
    LOGIN_HANDSHAKE_FAILED = "LoginHandshakeFailed"
    LOGIN_AUTHENTICATION_FAILED = "LoginAuthenticationFailed"
    HOST_KEY_MISMATCH = "HostKeyMismatch"
    HOST_KEY_UNKNOWN = "HostKeyUnknown"
    KNOWN_HOSTS_UNUSABLE = "KnownHostsUnusable"
    LOGIN_KEY_UNUSABLE = "LoginKeyUnusable"
    SHELL_UNAVAILABLE = "ShellUnavailable"
    LOGIN_CLOSED = "LoginClosed"

    CONNECTION_LOST = "ConnectionLost"
    COMMAND_TIMEOUT = "CommandTimeout"
    COMMAND_KILLED = "CommandKilled"
    ANSWER_INCOMPLETE = "AnswerIncomplete"
    OUTPUT_TOO_LARGE = "OutputTooLarge"


class LoginError(Exception):
    """A command without a result. `str()` is the message: what happened, and what to do about it.

    `stdout` and `stderr` hold what had arrived of the command's own output, without the login's greetings.
    """

    def __init__(self, reason: Reason, message: str, *, stdout: bytes = b"", stderr: bytes = b"") -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.stdout = stdout
        self.stderr = stderr


class NotRun(LoginError):
    """The command certainly did not start. `retry_after` is in seconds, None where no wait is known."""

    def __init__(
        self,
        reason: Reason,
        message: str,
        *,
        retry_after: float | None = None,
        stdout: bytes = b"",
        stderr: bytes = b"",
    ) -> None:
        super().__init__(reason, message, stdout=stdout, stderr=stderr)
        self.retry_after = retry_after

    def delayed(self, seconds: float) -> NotRun:
        """The same failure for another caller, with the time until the next connection is tried.

        The message stays as it is: a status that shows it would otherwise change with every try.
        """
        return NotRun(self.reason, self.message, retry_after=seconds, stdout=self.stdout, stderr=self.stderr)


class OutcomeUnknown(LoginError):
    """The command may have run. Look before running it again."""
