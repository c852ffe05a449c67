"""Ports of beds: the same from one start to the next, and never one for two."""

from __future__ import annotations

import random
import socket
from pathlib import Path

import pytest

from testbed import ports


def test_ports_are_kept_while_nobody_else_has_them(tmp_path: Path) -> None:
    file = tmp_path / "part" / "ports.json"
    first = ports.kept_ports(file, ["one", "other"])
    assert set(first.values()) <= set(ports.RANGE) and len(set(first.values())) == 2
    assert ports.kept_ports(file, ["one", "other"]) == ports.read_ports(file) == first
    with socket.socket() as somebody:
        somebody.bind(("127.0.0.1", first["one"]))
        somebody.listen()
        second = ports.kept_ports(file, ["one", "other"])
    assert second["one"] not in first.values() and second["other"] == first["other"]


def test_a_port_that_another_part_was_given_is_taken_before_anything_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = ports.kept_ports(tmp_path / "one.json", ["port"])["port"]
    other = next(port for port in ports.RANGE if port != one and port not in ports._drawn and ports.is_free(port))
    draws = iter([one, other])
    monkeypatch.setattr(random, "choice", lambda range_: next(draws))
    assert ports.kept_ports(tmp_path / "other.json", ["port"]) == {"port": other}


def test_beds_side_by_side_draw_from_ranges_of_their_own() -> None:
    assert not set(ports.RANGES[""]) & set(ports.RANGES["w1"])
