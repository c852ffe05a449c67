"""The bed that contract and cluster tests share: brought up once for all of them, taken down after the last test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from testbed.bed import Bed
from testbed.facts import Facts
from testbed.part import STATE, Place

OTHERS = "SPEEDRUN_TESTBED"

# How long an example takes says more of the machine's other work than of the code.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def place(pytestconfig: pytest.Config) -> Place:
    """Where the bed of this test run lives. What it says is shown at once: a wait would look like a hang."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")

    def say(line: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\ntestbed: {line}", end="", flush=True)

    return Place(state=Path(os.environ.get(OTHERS) or STATE), profile="fast", say=say)


@pytest.fixture(scope="session")
def bed(place: Place) -> Iterator[Facts]:
    """A whole bed of this run's own; or, where SPEEDRUN_TESTBED names a bed's state directory, the one up there."""
    bed = Bed(place)
    with bed.claim() if os.environ.get(OTHERS) else bed.hold() as facts:
        yield facts
