"""A container's log read in bounded pieces, over requests that know only time and size. Pure.

The kubelet gives lines from a whole second on, each behind the time (nanoseconds) at which it was written. The cursor
is the time of the last whole line taken and how many lines of that very time were taken; what is read twice is
skipped. A rotated log begins anew, with later times. A line whose end was not read is left for the next time.

What was written while the node's clock was set back has earlier times than what was read; `all_of` takes it, too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

MOST_BYTES = 8 * 1024 * 1024
_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d{1,9})?(Z|[+-]\d\d:\d\d) ")


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far a container's log was read. `overlap`: bytes from its second on that a request gives again.

    `widened`: how much more than usual the next request asks for, since the last one got no further.
    """

    second: str | None = None
    stamp: bytes = b""
    lines_at_stamp: int = 0
    overlap: int = 0
    widened: int = 0

    def asks(self, most: int) -> int:
        """How many bytes to ask for so that at most about `most` are new."""
        return min(MOST_BYTES, self.overlap + max(most, self.widened))


@dataclass(frozen=True, slots=True)
class Taken:
    """What a piece of a log came to: the new text, the cursor behind it, whether there may be more at once."""

    data: bytes
    cursor: Cursor
    more: bool


def take(cursor: Cursor, piece: bytes, asked: int) -> Taken:
    """`piece`: the answer to a request from `cursor.second` on for at most `asked` bytes."""
    cut = len(piece) >= asked
    whole = piece[: piece.rfind(b"\n") + 1]
    at, same = cursor.stamp, 0
    second, stamp, lines, overlap = cursor.second, cursor.stamp, cursor.lines_at_stamp, 0
    new: list[bytes] = []
    for line in (each + b"\n" for each in whole.split(b"\n")[:-1]):  # a program's \r ends no line
        found = _STAMP.match(line)
        if found is None:  # no line of the log: the kubelet's own word that there is none
            continue
        written = _comparable(found)
        if written == at:
            same += 1
        if written > at or (written == at and same > cursor.lines_at_stamp):
            new.append(line[found.end() :])
            lines = lines + 1 if written == stamp else 1
            stamp = written
            this = _second(written)
            if this != second:
                second, overlap = this, 0
        if _second(written) == second:
            overlap += len(line)
    moved = Cursor(second, stamp, lines, overlap)
    if not new and cut and asked >= MOST_BYTES:
        # More in one second than a request may ask for: what else it has is left out.
        return Taken(b"", Cursor(_second_after(second), stamp, lines), True) if second else Taken(b"", cursor, False)
    if not new and cut:
        return Taken(b"", replace(cursor, widened=2 * max(cursor.widened, asked - cursor.overlap)), True)
    return Taken(b"".join(new), moved, cut)


def all_of(piece: bytes) -> bytes:
    """The text of a log that was read at once, whatever the times in it."""
    whole = piece[: piece.rfind(b"\n") + 1]
    lines = ((_STAMP.match(each), each) for each in whole.split(b"\n")[:-1])
    return b"".join(each[found.end() :] + b"\n" for found, each in lines if found is not None)


def _comparable(found: re.Match[bytes]) -> bytes:
    """A time as bytes that sort by it, whatever zone the kubelet writes it in: that may change while it runs."""
    fraction = (found[2] or b".")[1:].ljust(9, b"0")
    return _utc(found[1] + found[3]) + b"." + fraction


def _utc(second: bytes) -> bytes:
    if second.endswith(b"Z"):
        return second[:-1]
    return datetime.fromisoformat(second.decode()).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S").encode()


def _second(written: bytes) -> str:
    return written[:19].decode() + "Z"


def _second_after(second: str) -> str:
    following = datetime.fromisoformat(second.replace("Z", "+00:00")) + timedelta(seconds=1)
    return following.strftime("%Y-%m-%dT%H:%M:%SZ")
