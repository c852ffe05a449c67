"""Bytes to lines: torn pieces, carriage returns, colour codes, holes, output without a line end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedrun_operator.progress.lines import MAX_LINE_BYTES, LineState, split

LONG = b"x" * MAX_LINE_BYTES


def lines_of(*chunks: bytes) -> list[str]:
    state, lines = LineState(), []
    for chunk in chunks:
        state, found = split(state, chunk)
        lines += found
    return lines


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        pytest.param([b"one\ntwo\n"], ["one", "two"], id="whole lines"),
        pytest.param(
            [b"val_loss:3.27", b"91 train_", b"time:1ms\n"], ["val_loss:3.2791 train_time:1ms"], id="torn number"
        ),
        pytest.param([b"open"], [], id="no line end, no line"),
        pytest.param([b"a\r\nb\r\n"], ["a", "b"], id="CRLF"),
        pytest.param([b"a\r", b"\nb\n"], ["a", "b"], id="CRLF torn in two"),
        pytest.param([b" 10%|#  |\r 55%|## |\rdone\n"], [" 10%|#  |", " 55%|## |", "done"], id="progress bar"),
        pytest.param([b"bar \xe2\x96", b"\x88 ok\n"], ["bar \u2588 ok"], id="torn letter"),
        pytest.param([b"\x88\nnext\n"], ["\ufffd", "next"], id="half a letter"),
        pytest.param([b"\0\0\0step:1\n"], ["step:1"], id="hole in the file"),
        pytest.param([b"\0" * 3 * MAX_LINE_BYTES + b"step:1\n"], ["step:1"], id="hole longer than a line may be"),
        pytest.param([b"\x1b[32m\x1b[1mINFO\x1b[0m ready\n"], ["INFO ready"], id="colours"),
        pytest.param([b"\x1b]0;title\x07text\n"], ["text"], id="window title"),
        pytest.param([b"\n\n \t\n\x1b[0m\na\n"], ["a"], id="empty lines are left out"),
        pytest.param([LONG + b"\nnext\n"], [LONG.decode(), "next"], id="longest line"),
        pytest.param([LONG + b"x\nnext\n"], ["next"], id="too long a line"),
        pytest.param([LONG, b"x", LONG, b" step:1\nnext\n"], ["next"], id="too long a line in pieces"),
    ],
)
def test_lines(chunks: list[bytes], expected: list[str]) -> None:
    assert lines_of(*chunks) == expected


def test_output_without_line_ends_costs_no_memory() -> None:
    state = LineState()
    for _ in range(32):
        state, lines = split(state, b"#" * 65536)
        assert lines == []
        assert len(state.pending) <= MAX_LINE_BYTES
    assert split(state, b"\nalive\n")[1] == ["alive"]


pieces = st.lists(st.one_of(st.binary(max_size=40), st.sampled_from([LONG, b"\r\n", b"\x1b[1m", b"\xe2\x96", b"\x88"])))


@given(pieces)
def test_cutting_makes_no_difference(chunks: list[bytes]) -> None:
    assert lines_of(*chunks) == lines_of(b"".join(chunks))
