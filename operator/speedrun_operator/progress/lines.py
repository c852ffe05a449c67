"""Bytes in any pieces -> whole, clean lines of text.

A log is read while it is written, so a piece may end within a number or a letter: only what a line end closes is a
line. A carriage return closes one too (progress bars have no other). Lines are bounded, so that output without any
line end costs no memory.
"""

import re
from dataclasses import dataclass

MAX_LINE_BYTES = 4096
"""Longer lines are left out whole: no line that says anything about progress comes near it."""

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")


@dataclass(frozen=True, slots=True)
class LineState:
    """The open line between two pieces: its bytes (at most MAX_LINE_BYTES), or that it is left out."""

    pending: bytes = b""
    skipping: bool = False


def split(state: LineState, chunk: bytes) -> tuple[LineState, list[str]]:
    """The lines that `chunk` completes, without line end, colour codes, NUL bytes and blanks at the end.

    Empty lines are left out. Bytes that are no UTF-8 become U+FFFD. How the bytes are cut into chunks makes no
    difference to the lines.
    """
    if b"\0" in chunk:  # a hole that truncating an open log leaves
        chunk = chunk.replace(b"\0", b"")
    if b"\r" in chunk:
        chunk = chunk.replace(b"\r", b"\n")
    head, newline, rest = chunk.partition(b"\n")
    if not newline:
        return _hold(state, head), []
    parts = rest.split(b"\n")
    still_open = _hold(LineState(), parts.pop())
    if not state.skipping:
        parts.insert(0, state.pending + head)
    lines = [_clean(part) for part in parts if part and len(part) <= MAX_LINE_BYTES]
    return still_open, [line for line in lines if line]


def _hold(state: LineState, piece: bytes) -> LineState:
    if state.skipping or len(state.pending) + len(piece) > MAX_LINE_BYTES:
        return LineState(skipping=True)
    return LineState(pending=state.pending + piece)


def _clean(line: bytes) -> str:
    text = line.decode(errors="replace")
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    return text.rstrip()
