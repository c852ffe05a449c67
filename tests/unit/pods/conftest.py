"""What the tests of pods share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from unit.pods.api import World


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    await made.backend.close()
