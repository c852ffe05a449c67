"""Polls: who is asked, when, and who is told the answer.

Each poll of a place asks about all that is live there in one remote command.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping
from typing import Protocol

from speedrun_operator.api.spec import Backend as Kind
from speedrun_operator.backends.base import Backend, Place, Snapshot
from speedrun_operator.entries import Entry, Setup
from speedrun_operator.jobs import Jobs
from speedrun_operator.lifecycle.observation import Observed, Prepared, Unknown
from speedrun_operator.places import Places
from speedrun_operator.questions import Questions

LEAST = 1.0
JITTER = 0.1  # of a period: operators that started together do not ask together


def next_poll(began: float, took: float, period: float, rest: float) -> float:
    """The moment of the next poll, in seconds of the clock that `began` is of.

    A period after this poll began; but it is left alone for at least as long as it was kept busy (`took`), and as it
    asked for (`rest`). What becomes of the answers, however long, keeps it not busy.
    """
    return began + max(period, took + max(LEAST, rest, took))


class Reconcile(Protocol):
    async def __call__(
        self,
        uid: str,
        *,
        observed: Mapping[int, Observed] | None = None,
        prepared: Mapping[str, Prepared] | None = None,
        unanswered: Unknown | None = None,
    ) -> None: ...


class Polling:
    """For one engine: its `entries`, and `reconcile` to tell one of them what was seen of it."""

    def __init__(
        self, entries: Mapping[str, Entry], places: Places, jobs: Jobs, setup: Setup, reconcile: Reconcile
    ) -> None:
        self._entries = entries
        self._places = places
        self._jobs = jobs
        self._setup = setup
        self._clock = setup.clock
        self._reconcile = reconcile
        self.polls: Counter[tuple[Kind, bool]] = Counter()
        """By backend, and whether it answered."""

    async def follow(self, place: Place) -> None:
        """Poll all that is live in one place, and what it has news of in between."""
        while True:
            period = self._setup.period(place.kind) * random.uniform(1 - JITTER, 1 + JITTER)
            backend = self._places.backends.get(place)
            if backend is None:
                await asyncio.sleep(period)
                continue
            began = self._clock.monotonic()
            questions, snapshot = await self._ask(place, backend)
            took = self._clock.monotonic() - began
            await self._tell(questions, snapshot)
            end = next_poll(began, took, 0.0 if snapshot.behind else period, snapshot.rest)
            while (left := end - self._clock.monotonic()) > 0:
                names = await backend.changed(left)
                if names is None:
                    break
                await self._tell(*await self._ask(place, backend, names))

    async def _ask(
        self, place: Place, backend: Backend, names: frozenset[str] | None = None
    ) -> tuple[Questions, Snapshot]:
        """One poll of everything live there, or of `names`: what was asked, and the answer."""
        questions = Questions.of(self._entries, self._setup, place, backend, names)
        if not questions.uids:
            return questions, Snapshot()
        snapshot = self._places.gone()
        if snapshot is None:
            snapshot = await questions.ask(self._jobs)
            self.polls[place.kind, snapshot.error is None] += 1
            if self._places.backends.get(place) is not backend:
                return questions.none(), Snapshot()  # its login has changed meanwhile, and with it who was asked
        self._places.noted(place, snapshot)
        return questions, snapshot

    async def _tell(self, questions: Questions, snapshot: Snapshot) -> None:
        """Pass an answer on to all that it was asked for."""
        await asyncio.gather(*(self._after_poll(uid, questions, snapshot) for uid in questions.uids))

    async def _after_poll(self, uid: str, questions: Questions, snapshot: Snapshot) -> None:
        entry = self._entries.get(uid)
        if entry is None:
            return
        entry.quiet_polls += 1
        unanswered = questions.unanswered(uid, snapshot)
        if entry.lock.locked() and (unanswered is not None or not await entry.free_soon()):
            return  # whoever works on it asks the backend, too, and later than this poll did
        observed = questions.observed(uid, snapshot)
        prepared = questions.prepared(uid, self._setup.preparing(entry.resource), snapshot)
        if observed or prepared or unanswered:
            await self._reconcile(uid, observed=observed, prepared=prepared, unanswered=unanswered)
