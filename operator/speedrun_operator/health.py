"""/healthz: fails when the engine's event loop stands still, so that Kubernetes restarts the process.

Served from a thread of its own, since a loop that stands still cannot answer. Slurm's or the login's health is no part
of it: a restart cures neither.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from speedrun_operator.heart import Heart
from speedrun_operator.listening import Answer, Page

PATH = "/healthz"
STILL_SECONDS = 30.0


def healthz(heart: Heart, counts: Callable[[], Mapping[str, object]]) -> Page:
    """The page. `counts` gives numbers to show beside the heart's word."""

    def page(headers: Mapping[str, str]) -> Answer:
        age = heart.age
        alive = age < STILL_SECONDS
        body = json.dumps({"alive": alive, "loop_age_seconds": round(age, 1), **counts()}).encode()
        return Answer(body, "application/json", 200 if alive else 503)

    return page
