"""The bed as a whole: one a machine, brought up and taken down, by hand and by tests.

Files in its state directory say what is so: `lock` (held while somebody changes the bed), `users` (held by each
living process that uses it), `begun` (what was started) and `state.json` (written once everything is up). A bed that
no living process uses may be taken down by anybody who needs the place; one in use is waited for.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from testbed import login
from testbed.facts import Facts
from testbed.halves import HALVES, WATCHDOG, bring_up, take_down
from testbed.locks import Users, exclusive
from testbed.part import STATE, Place
from testbed.processes import Proc, StartFailed, start_ticks

WAIT_SECONDS = 0.5


class InUse(Exception):
    """The bed is used by living processes, which the message names."""


@dataclass(frozen=True)
class State:
    """What is up: written by `up` when everything is, removed first by `down`."""

    profile: str
    halves: list[str]
    processes: list[str]
    facts: dict[str, str]


class Bed:
    """The bed at `place`, or one half of it. Constructing starts nothing."""

    def __init__(self, place: Place | None = None, only: str | None = None) -> None:
        if only is not None and only not in HALVES:
            raise ValueError(f"unknown half {only!r}: choose one of {', '.join(HALVES)}")
        self.place = place or Place()
        self.halves = (only,) if only else HALVES
        self.users = Users(self.place.state / "users")

    # ---- by hand

    def up(self) -> Facts:
        """Bring the bed up and leave it running without an owner; one like it that is up already is kept.

        Waits while a bed is up that is in use and not like it. Raises StartFailed.
        """
        with self._changing():
            if facts := self._running_alike():
                return facts
        with self._free():
            if facts := self._running_alike():
                return facts
            self._bring_up()
            self.place.processes.stop(WATCHDOG)
            return self.facts()

    def down(self, *, force: bool = False) -> None:
        """Take the bed down. Raises InUse when living processes use it, unless `force`."""
        with self._changing():
            self._refuse_if_used(force)
            self._take_down()

    def clean(self, *, force: bool = False) -> None:
        """Take the bed down and remove its state. The cache of built tools stays.

        The users are the machine's: they go with the machine's one bed, not with another that somebody develops.
        """
        with self._changing():
            self._refuse_if_used(force)
            self._take_down()
            if self.place.state == STATE:
                login.remove_users(self.place)
            shutil.rmtree(self.place.state)

    # ---- by tests, benches and the demo

    @contextmanager
    def hold(self) -> Iterator[Facts]:
        """A fresh bed of this process' own, claimed; taken down after the context, also when this process is killed.

        Takes down a bed that nobody uses; waits for one in use. Raises StartFailed.
        """
        with ExitStack() as claims:
            with self._free():
                bed = self._bring_up()
                claims.enter_context(self.users.claim())
            try:
                yield self.facts()
            finally:
                with self._changing():
                    if self.place.processes.get(WATCHDOG) == bed:  # else somebody forced it down and made another
                        self._take_down()

    @contextmanager
    def claim(self) -> Iterator[Facts]:
        """Use the bed that is up: nobody takes it down while the context lasts. Raises StartFailed if none is up."""
        with ExitStack() as claims:
            with self._changing():
                facts = self.facts()
                if dead := [name for name, _, alive in self.status() if not alive]:
                    raise StartFailed("bed", f"{', '.join(dead)} ended: run `python -m testbed up` to start it again")
                claims.enter_context(self.users.claim())
            yield facts

    # ---- questions

    def state(self) -> State | None:
        """What is up, or None when no bed is (or one whose state this version cannot read)."""
        try:
            return State(**json.loads((self.place.state / "state.json").read_text()))
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def status(self) -> list[tuple[str, int | None, bool]]:
        """(name, pid, alive) of each process that should run or is recorded, also while the bed is half up."""
        state = self.state()
        names = {*(state.processes if state else ()), *self.place.processes.names()}
        rows: list[tuple[str, int | None, bool]] = []
        for name in sorted(names):
            proc = self.place.processes.get(name)
            rows.append((name, proc.pid if proc else None, self.place.processes.alive(name)))
        return rows

    def facts(self) -> Facts:
        """The facts of the bed that is up. Raises StartFailed when none is."""
        state = self.state()
        if state is None:
            raise StartFailed("bed", "none is up: run `python -m testbed up` first")
        return Facts(state.facts)

    def _running_alike(self) -> Facts | None:
        """The facts of a bed that is up, whole, of the same profile, with our halves, and not a test run's own."""
        state = self.state()
        if state is None or state.profile != self.place.profile or not set(self.halves) <= set(state.halves):
            return None
        owned = self.place.processes.get(WATCHDOG) is not None
        if owned or not all(alive for _, _, alive in self.status()):
            return None
        self.place.say("the bed is up already")
        return Facts(state.facts)

    # ---- who may change it

    def _changing(self) -> AbstractContextManager[None]:
        def busy(holder: str) -> None:
            self.place.say(f"the bed is being changed by {holder}: waiting for it")

        return exclusive(self.place.state / "lock", busy)

    @contextmanager
    def _free(self) -> Iterator[None]:
        """Hold the lock of a bed that no living process uses; until there is one, wait, and say for whom."""
        told: list[str] = []
        while True:
            with self._changing():
                users = self.users.living()
                if not users:
                    yield
                    return
            if users != told:
                self.place.say(f"the bed is in use by {', '.join(users)}: waiting until it is free (Ctrl-C gives up)")
                told = users
            time.sleep(WAIT_SECONDS)

    def _refuse_if_used(self, force: bool) -> None:
        if (users := self.users.living()) and not force:
            raise InUse(f"the bed is in use by {', '.join(users)}: end that first, or use --force")

    # ---- changing it, with the lock held

    def _bring_up(self) -> Proc:
        """Start everything afresh; the watchdog's process, which stands for this very bed."""
        self._take_down()
        shutil.rmtree(self.place.logs, ignore_errors=True)
        self.place.state.chmod(0o755)  # job users read below it, whatever the umask
        (self.place.state / "begun").write_text(" ".join(self.halves))
        watchdog = self._start_watchdog()
        try:
            facts = bring_up(self.place, self.halves)
            names = [name for name in self.place.processes.names() if name != WATCHDOG]
            state = State(self.place.profile, list(self.halves), names, facts)
            (self.place.state / "state.json").write_text(json.dumps(asdict(state), indent=1))
        except BaseException:
            self._take_down()
            raise
        return watchdog

    def _take_down(self) -> None:
        """Stop everything that is recorded, the watchdog last: if we are killed meanwhile, it finishes the work."""
        (self.place.state / "state.json").unlink(missing_ok=True)
        begun = self.place.state / "begun"
        take_down(self.place, begun.read_text().split() if begun.exists() else ())
        for name in self.place.processes.names():
            if name != WATCHDOG:
                self.place.processes.stop(name)
        if self._is_watchdog():
            self.place.processes.forget(WATCHDOG)
        else:
            self.place.processes.stop(WATCHDOG)
        begun.unlink(missing_ok=True)

    def _start_watchdog(self) -> Proc:
        """A process that takes this bed down when ours ends without having done so."""
        owner = os.getpid()
        what = (str(self.place.state), str(owner), str(start_ticks(owner)))
        argv = [sys.executable, "-m", "testbed.watchdog", *what]
        env = {"PYTHONPATH": str(Path(__file__).parents[1])}
        return self.place.processes.start(WATCHDOG, argv, log=self.place.logs / "watchdog.log", env=env)

    def _is_watchdog(self) -> bool:
        proc = self.place.processes.get(WATCHDOG)
        return proc is not None and proc.pid == os.getpid()

    def down_for_dead_owner(self) -> None:
        """What the watchdog does: nothing if this bed has gone and another one is up by now."""
        with self._changing():
            if self._is_watchdog():
                self._take_down()
