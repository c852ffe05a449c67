"""Marker lines that the operator's own job script prints into the log: what began or ended, when, how.

    SPEEDRUN attempt job=17 allocation=0
    SPEEDRUN run=0 stage=data end exit=0 time=1764545000.123

A line counts only when all of it has this form, from its first letter on: a script prints a line end before each
marker, since a program that died may have left a line open. Nothing proves that the script printed it: a training
program can print one too, so what a marker says is read with care here (no field makes the parser fail) and weighed
by the reader.
"""

import re
from dataclasses import dataclass
from urllib.parse import unquote

from speedrun_operator.progress import quantities

PREFIX = "SPEEDRUN "

_WORD = re.compile(r"[a-z][a-z0-9_-]{0,62}")


@dataclass(frozen=True, slots=True)
class Marker:
    """One marker line: its bare `words`, and its `fields` (key, value) with percent-encoding undone, in order."""

    words: tuple[str, ...]
    fields: tuple[tuple[str, str], ...]

    def text(self, key: str) -> str | None:
        """The value of `key`; None when the line has no such key."""
        return dict(self.fields).get(key)

    def integer(self, key: str) -> int | None:
        """The value of `key` as a whole number; None when absent or no such number."""
        return quantities.integer(self.text(key) or "")

    def milliseconds(self, key: str) -> int | None:
        """The value of `key`, printed in seconds, as whole milliseconds; None when absent or no time."""
        return quantities.milliseconds(self.text(key) or "")


def parse_marker(line: str) -> Marker | None:
    """The marker on `line`, or None: no marker, a malformed one, or one that gives a key twice."""
    if not line.startswith(PREFIX):
        return None
    words: list[str] = []
    fields: dict[str, str] = {}
    for token in line.removeprefix(PREFIX).split(" "):
        name, equals, value = token.partition("=")
        if not _WORD.fullmatch(name) or name in fields:
            return None
        if equals:
            fields[name] = unquote(value, errors="replace")
        else:
            words.append(name)
    return Marker(words=tuple(words), fields=tuple(fields.items()))
