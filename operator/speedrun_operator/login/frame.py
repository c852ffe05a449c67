r"""The frame around a remote command: how a script travels, and how its answer is told from everything else.

Pure. The exec command is one constant, so nothing of ours is ever in a process list. Script and stdin share the
channel's one input:

    exit 97 # speedrun-login-1 NONCE LENGTH\n   the header
    LENGTH bytes                                the script
    …                                           the script's own stdin, up to end of file

and each of stdout and stderr comes back as

    …noise…SRB-NONCE\n…the script's output, exact…SRE-NONCE-RC\n…noise…

Noise is what shell start-up files, banners and processes left behind print. Why each part is as it is:

* The constant is one line of single-quoted text without `!`, backslash-quote or newline, which sh, bash, zsh, csh,
  tcsh and fish hand to bash alike. `-p` keeps BASH_ENV and exported functions of the account out.
* `read -N` fails unless all LENGTH bytes come, and then nothing is evaluated: a connection that dies on the way runs
  nothing, not the first half. No opening mark in a finished answer therefore proves that the script did not run.
* If a start-up file eats the header, or a forced command feeds our input to a plain shell, the first line is a
  stranger or ends that shell: again nothing runs.
* The script runs in a subshell: `exit`, `exec`, `set -e` and closed descriptors leave the closing mark alone, and
  the outer shell reads no input after the script, so no inner command can eat the frame.
* The nonce is new for each command, so no output can look like a mark.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, field

TAG = "speedrun-login-1"
NONCE_BYTES = 16
# One pattern for every nonce: a pattern a command would fill re's cache with what is never used again.
CLOSING = re.compile(rb"SRE-([0-9a-f]{%d})-(\d{3})\n" % (2 * NONCE_BYTES))
CLOSING_LENGTH = len("SRE--000\n") + 2 * NONCE_BYTES
NOISE_KEPT = 512  # bytes of what came before the opening mark, for error messages

BOOTSTRAP = (
    f'IFS=" " read -r _ _ _ tag nonce length && [ "$tag" = {TAG} ]'
    ' && IFS= read -r -N "$length" script'
    r' && printf "SRB-%s\n" "$nonce" && printf "SRB-%s\n" "$nonce" >&2 || exit 97;'
    ' (eval "unset tag nonce length script; $script"); code=$?;'
    r' printf "SRE-%s-%03d\n" "$nonce" "$code"; printf "SRE-%s-%03d\n" "$nonce" "$code" >&2'
)
# `env NAME=value` because csh and fish have no `NAME=value command`.
EXEC_COMMAND = f"env LC_ALL=C /bin/bash --noprofile --norc -p -c '{BOOTSTRAP}'"


@dataclass(frozen=True)
class Request:
    """One command as it goes over the channel: `payload` is the header, the script and its stdin."""

    nonce: str
    payload: bytes = field(repr=False)


def encode(script: str, stdin: bytes) -> Request:
    """Frame a script (bash, any text but NUL) and its stdin (any bytes).

    Raises ValueError for a script that cannot travel: bash drops NUL bytes, and half a script must not run.
    """
    if "\0" in script:
        raise ValueError("a remote script cannot hold a NUL character: send such data by stdin")
    nonce = secrets.token_hex(NONCE_BYTES)
    text = script.encode()
    header = f"exit 97 # {TAG} {nonce} {len(text)}\n".encode()
    return Request(nonce, b"".join((header, text, stdin)))


class Scanner:
    """Finds one stream's framed content in the pieces that arrive, however they are cut.

    `content` is at most `limit` bytes; `overflow` says that there was more (it is still scanned for the closing mark,
    and dropped). `exit_code` is None until the closing mark has come.
    """

    def __init__(self, nonce: str, *, limit: int) -> None:
        self._opening = f"SRB-{nonce}\n".encode()
        self._nonce = nonce.encode()
        self._limit = limit
        self._pending = bytearray()  # arrived, and may yet be the start of a mark
        self._noise = bytearray()
        self._content = bytearray()
        self.opened = False
        self.overflow = False
        self.exit_code: int | None = None

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        if self.exit_code is not None:
            return
        self._pending += data
        if not self.opened:
            self._find_opening()
        if self.opened:
            self._find_closing()

    @property
    def content(self) -> bytes:
        """The script's output so far, complete once `exit_code` is known."""
        if self.opened and self.exit_code is None:
            return bytes(self._content + self._pending)[: self._limit]
        return bytes(self._content)

    @property
    def noise(self) -> bytes:
        """The first NOISE_KEPT bytes before the opening mark."""
        return bytes(self._noise if self.opened else self._noise + self._pending)[:NOISE_KEPT]

    def _find_opening(self) -> None:
        at = self._pending.find(self._opening)
        decided = at if at >= 0 else max(0, len(self._pending) - len(self._opening) + 1)
        self._noise += self._pending[: min(decided, NOISE_KEPT - len(self._noise))]
        del self._pending[:decided]
        if at >= 0:
            del self._pending[: len(self._opening)]
            self.opened = True

    def _find_closing(self) -> None:
        found = next((mark for mark in CLOSING.finditer(self._pending) if mark[1] == self._nonce), None)
        decided = found.start() if found else max(0, len(self._pending) - CLOSING_LENGTH + 1)
        room = self._limit - len(self._content)
        self.overflow = self.overflow or decided > room
        self._content += self._pending[: min(decided, room)]
        if found:
            self.exit_code = int(found[2])
            self._pending.clear()
        else:
            del self._pending[:decided]
