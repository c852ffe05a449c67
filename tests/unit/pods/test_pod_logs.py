"""Container logs in pieces: whatever the pieces, every line arrives once and in order."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speedrun_operator.backends.pods.logs import MOST_BYTES, Cursor, take

NOON = 1_782_900_000


@dataclass
class Kubelet:
    """A log as the kubelet gives it: lines behind the time of their writing, from a whole second on, cut at a size."""

    lines: list[tuple[int, bytes]] = field(default_factory=list)  # nanoseconds, text without its end
    unfinished: bytes = b""

    def write(self, at: int, text: bytes) -> None:
        self.lines.append((at, text))

    def rotate(self) -> None:
        self.lines.clear()

    def answer(self, since: str | None, most: int) -> bytes:
        found = [(at, text) for at, text in self.lines if since is None or stamp(at)[:19] >= since[:19]]
        whole = b"".join(stamp(at).encode() + b" " + text + b"\n" for at, text in found)
        return (whole + self.unfinished)[:most]


def stamp(nanoseconds: int) -> str:

    seconds, rest = divmod(nanoseconds, 10**9)
    moment = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    fraction = f".{rest:09d}".rstrip("0").rstrip(".")
    return f"{moment}{fraction}Z"


def read(kubelet: Kubelet, cursor: Cursor, most: int) -> tuple[bytes, Cursor]:
    """All that there is now, in pieces of about `most` bytes."""
    got = b""
    for _ in range(10_000):
        asked = cursor.asks(most)
        taken = take(cursor, kubelet.answer(cursor.second, asked), asked)
        got, cursor = got + taken.data, taken.cursor
        if not taken.more:
            return got, cursor
    raise AssertionError("it never comes to the end")


GAPS = st.sampled_from([0, 0, 1, 1000, 5 * 10**8, 10**9, 61 * 10**9])
TEXT = st.binary(max_size=60).map(lambda data: data.replace(b"\n", b" "))


@settings(deadline=None)
@given(
    st.lists(st.lists(st.tuples(GAPS, TEXT), max_size=12), max_size=8),
    st.integers(1, 300),
    st.booleans(),
)
def test_every_line_arrives_once_and_in_order(bursts: list[list[tuple[int, bytes]]], most: int, rotates: bool) -> None:
    kubelet, cursor, now = Kubelet(), Cursor(), NOON * 10**9
    written = got = b""
    for burst in bursts:
        for gap, text in burst:
            now += gap
            kubelet.write(now, text)
            written += text + b"\n"
        piece, cursor = read(kubelet, cursor, most)
        got += piece
        assert got == written
        if rotates:
            kubelet.rotate()
            now += 1


def test_a_line_without_its_end_waits_for_it() -> None:
    kubelet = Kubelet()
    kubelet.write(NOON * 10**9, b"one")
    kubelet.unfinished = stamp(NOON * 10**9 + 5).encode() + b" tw"
    got, cursor = read(kubelet, Cursor(), 1000)
    assert got == b"one\n"
    kubelet.unfinished = b""
    kubelet.write(NOON * 10**9 + 5, b"two")
    assert read(kubelet, cursor, 1000)[0] == b"two\n"


def test_torn_utf8_is_never_handed_on() -> None:
    kubelet = Kubelet()
    kubelet.write(NOON * 10**9, "Zürich ✓".encode())
    for most in range(1, 60):
        got, _ = read(kubelet, Cursor(), most)
        assert got.decode() == "Zürich ✓\n"


def test_the_kubelets_own_words_are_no_line_of_the_log() -> None:
    said = b"unable to retrieve container logs for containerd://0f3c"
    taken = take(Cursor(), said + b"\n", 1000)
    assert (taken.data, taken.cursor, taken.more) == (b"", Cursor(), False)


@pytest.mark.parametrize("fraction", ["", ".5", ".500000000"])
def test_times_with_fewer_digits_are_the_same_times(fraction: str) -> None:
    first = f"2026-07-01T12:00:00{fraction}Z a\n".encode()
    cursor = take(Cursor(), first, 1000).cursor
    later = first + b"2026-07-01T12:00:00.600000000Z b\n"
    assert take(cursor, later, 1000).data == b"b\n"


def test_a_line_longer_than_any_piece_is_asked_for_in_ever_larger_ones() -> None:
    kubelet = Kubelet()
    kubelet.write(NOON * 10**9, b"x" * 100_000)
    kubelet.write(NOON * 10**9, b"end")
    got, _ = read(kubelet, Cursor(), 64)
    assert got == b"x" * 100_000 + b"\nend\n"


def test_a_node_whose_zone_changes_loses_no_line() -> None:
    """As in autumn, where the kubelet writes the node's own time."""
    summer = b"2026-10-25T02:59:59.5+02:00 a\n2026-10-25T02:59:59.75+02:00 b\n"
    first = take(Cursor(), summer, 1000)
    assert first.data == b"a\nb\n" and first.cursor.second == "2026-10-25T00:59:59Z"
    winter = b"2026-10-25T02:59:59.75+02:00 b\n2026-10-25T02:00:00+01:00 c\n2026-10-25T02:00:01+01:00 d\n"
    assert take(first.cursor, winter, 1000).data == b"c\nd\n"


def test_more_in_one_second_than_can_be_asked_for_is_got_past() -> None:
    kubelet = Kubelet()
    for number in range(100):
        kubelet.write(NOON * 10**9 + number, b"x" * 100_000)
    kubelet.write((NOON + 1) * 10**9, b"end")
    got, cursor = read(kubelet, Cursor(), MOST_BYTES // 4)
    assert got.endswith(b"x\nend\n") and len(got) > 7_000_000
    kubelet.write((NOON + 2) * 10**9, b"more")
    assert read(kubelet, cursor, 1000)[0] == b"more\n"


def test_a_line_without_any_end_is_not_asked_for_over_and_over() -> None:
    kubelet = Kubelet(unfinished=stamp(NOON * 10**9).encode() + b" " + b"x" * 2 * MOST_BYTES)
    assert read(kubelet, Cursor(), 1000)[0] == b""
