"""Waiting for what a test looks at, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

POLL = 0.1


def until(what: str, holds: Callable[[], Any], timeout: float = 30) -> Any:
    """What `holds` gives, once it is something true; fails naming `what` after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not (found := holds()):
        assert time.monotonic() < deadline, f"{what}: not within {timeout:g} s"
        time.sleep(POLL)
    return found
