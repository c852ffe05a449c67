"""helm, which the tests of the chart render it with: built once from its Go module, where it is not there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from testbed.helm import Helm, Object
from testbed.part import Place
from unit.chart.rendering import BASE, merged

Render = Callable[..., list[Object]]


@pytest.fixture(scope="session")
def helm(place: Place) -> Helm:
    return Helm(place)


@pytest.fixture(scope="session")
def render(helm: Helm) -> Render:
    """The objects that the chart renders with BASE and these values; with flags it is rendered anew each time."""
    cache: dict[str, list[Object]] = {}

    def rendered(*values: dict[str, Any], flags: tuple[str, ...] = ()) -> list[Object]:
        whole = merged(BASE, *values)
        key = f"{whole} {flags}"
        if key not in cache:
            cache[key] = helm.template(whole, *flags)
        return cache[key]

    return rendered
