"""Quantities of Kubernetes, compared."""

from __future__ import annotations

from decimal import Decimal

import pytest

from speedrun_operator.backends.pods.quantity import amount


@pytest.mark.parametrize(
    ("one", "same"),
    [("1", "1000m"), ("0.5", "500m"), ("1Gi", "1024Mi"), ("1G", "1000M"), ("2k", "2e3"), ("1536Mi", "1.5Gi")],
)
def test_what_is_written_in_two_ways_is_the_same(one: str, same: str) -> None:
    assert amount(one) == amount(same) is not None


@pytest.mark.parametrize("text", ["", "Gi", "1 GiB", "-", "1Zi"])
def test_what_is_no_quantity_is_none(text: str) -> None:
    assert amount(text) is None


def test_binary_and_decimal_units_differ() -> None:
    assert amount("1Gi") == Decimal(2**30) and amount("1G") == Decimal(10**9)
