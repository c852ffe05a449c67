"""How long Slurm is left alone after it asked for fewer requests. One for each login: it outlives whoever waits."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from speedrun_operator.backends.slurm.refusals import is_limited
from speedrun_operator.login.backoff import Backoff

FIRST, LONGEST = 2.0, 60.0


class Pace:
    """Waits of about 2 s, 4 s … up to a minute, each shortened by up to a half; the first good answer ends them."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._backoff = Backoff(first=FIRST, longest=LONGEST, chance=random.random)

    def heard(self, text: str) -> bool:
        """Note what Slurm's programs printed with an answer that was none; whether it asks for fewer requests."""
        if not is_limited(text):
            return False
        if self.rest() == 0:  # answers to what was under way before count once
            self._backoff.failed(self._monotonic())
        return True

    def answered(self) -> None:
        """Slurm did what it was asked."""
        if self.rest() == 0:
            self._backoff.reset()

    def rest(self) -> float:
        """Seconds until it is to be asked again; 0: at once."""
        return self._backoff.remaining(self._monotonic())
