"""The parts of the bed in their order, and running the two halves at the same time."""

from __future__ import annotations

import concurrent.futures
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from testbed import jobpython, login, packages, slurm
from testbed.kubernetes import Kubernetes
from testbed.node import Node
from testbed.part import Part, Place

HALVES = ("kubernetes", "slurm")
WATCHDOG = "watchdog"  # recorded like the parts' processes, but it outlives them: see bed.py


def parts(place: Place, half: str) -> list[Part]:
    """The parts of one half, in the order in which they start."""
    if half == "kubernetes":
        return [Kubernetes(place), Node(place)]
    return [slurm.Slurm(place), login.Login(place), jobpython.JobPython(place)]


def bring_up(place: Place, halves: Sequence[str]) -> dict[str, str]:
    """Start the halves side by side; all their facts. Raises StartFailed.

    On a failure or an interrupt nothing more is started; what runs already is left for `take_down`.
    """
    place.processes.reopen()
    if "slurm" in halves:
        with _timed(place, "packages"):
            packages.install(place)  # by itself: apt runs to a clean end even when it is interrupted
    with concurrent.futures.ThreadPoolExecutor(len(halves)) as pool:
        futures = [pool.submit(_bring_up_half, place, half) for half in halves]
        try:
            concurrent.futures.wait(futures, return_when=concurrent.futures.FIRST_EXCEPTION)
            failed = [future for future in futures if future.done() and future.exception()]
            facts: dict[str, str] = {}
            for future in failed or futures:  # a failure is raised here, before the other half is waited for
                facts |= future.result()
        except BaseException:
            place.processes.close()
            for name in place.processes.names():  # whoever waits for one of these to be ready gives up
                if name != WATCHDOG:
                    place.processes.signal(name, signal.SIGTERM)
            raise
    return facts


def _bring_up_half(place: Place, half: str) -> dict[str, str]:
    facts: dict[str, str] = {}
    for part in parts(place, half):
        with _timed(place, part.name):
            facts |= part.up()
    return facts


@contextmanager
def _timed(place: Place, name: str) -> Iterator[None]:
    started = time.monotonic()
    yield
    place.say(f"{name}: ready after {time.monotonic() - started:.1f} s")


def take_down(place: Place, halves: Iterable[str]) -> None:
    """Stop every part of these halves, whatever of it is up. Says what went wrong and goes on."""
    with concurrent.futures.ThreadPoolExecutor(len(HALVES)) as pool:
        list(pool.map(lambda half: _take_down_half(place, half), halves))


def _take_down_half(place: Place, half: str) -> None:
    for part in reversed(parts(place, half)):
        try:
            part.down()
        except Exception as error:  # the other parts must still be stopped
            place.say(f"{part.name}: could not be stopped cleanly: {error}")
