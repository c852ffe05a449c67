"""Markers of the job script: exact form or nothing, and no field can break the reader."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedrun_operator.progress import Marker, parse_marker


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("SPEEDRUN attempt job=17 allocation=0", Marker(("attempt",), (("job", "17"), ("allocation", "0")))),
        (
            "SPEEDRUN run=0 stage=data begin time=1764545000.123",
            Marker(("begin",), (("run", "0"), ("stage", "data"), ("time", "1764545000.123"))),
        ),
        ("SPEEDRUN note text=a%20b%0Ac=d%25", Marker(("note",), (("text", "a b\nc=d%"),))),
        ("SPEEDRUN node=", Marker((), (("node", ""),))),
        ("SPEEDRUN ", None),
        ("SPEEDRUN", None),
        ("SPEEDRUN  attempt", None),
        (" SPEEDRUN attempt", None),
        ("echo SPEEDRUN attempt", None),
        ("speedrun attempt", None),
        ("SPEEDRUN attempt!", None),
        ("SPEEDRUN attempt =1", None),
        ("SPEEDRUN run=0 run=1", None),
        ("SPEEDRUN Operator is a program", None),
    ],
)
def test_markers(line: str, expected: Marker | None) -> None:
    assert parse_marker(line) == expected


def test_fields_are_read_as_numbers_only_when_they_are() -> None:
    marker = parse_marker(
        "SPEEDRUN exit=-9 run=01x job= time=1764545000.1235 late=nan far=1e99 big=99999999999999999999"
    )
    assert marker is not None
    assert marker.integer("exit") == -9
    assert [marker.integer(key) for key in ("run", "job", "absent", "big")] == [None] * 4
    assert marker.milliseconds("time") == 1764545000124
    assert [marker.milliseconds(key) for key in ("late", "far", "job", "exit", "absent")] == [None] * 5
    assert marker.text("run") == "01x"
    assert marker.text("absent") is None


@given(st.text())
def test_anything_after_the_prefix_is_read_or_refused(rest: str) -> None:
    marker = parse_marker(f"SPEEDRUN {rest}")
    for key, value in marker.fields if marker else ():
        assert marker is not None
        assert marker.text(key) == value
        marker.integer(key)
        marker.milliseconds(key)
