"""The bed that contract and cluster tests share: brought up once for all of them, taken down after the last test.

Under `pytest -n 2` each worker has a bed of its own: the first the machine's, the others beside it. Most of a test's
time is waiting for Slurm, Kubernetes or a run, so two beds on two cores take little longer for a test than one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

WORKER = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
if WORKER != "gw0":  # read once, by testbed.part
    os.environ["TESTBED_NAME"] = f"{os.environ.get('TESTBED_NAME', '')}{WORKER.removeprefix('g')}"

from testbed.bed import Bed  # noqa: E402
from testbed.facts import Facts  # noqa: E402
from testbed.part import STATE, Place  # noqa: E402

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
            # A worker's standard output is nobody's; its standard error is that of whoever started pytest.
            print(f"\ntestbed: {line}", end="", flush=True, file=sys.stderr)

    return Place(state=Path(os.environ.get(OTHERS) or STATE), profile="fast", say=say)


@pytest.fixture(scope="session")
def bed(place: Place) -> Iterator[Facts]:
    """A whole bed of this run's own; or, where SPEEDRUN_TESTBED names a bed's state directory, the one up there."""
    bed = Bed(place)
    with bed.claim() if os.environ.get(OTHERS) else bed.hold() as facts:
        yield facts
