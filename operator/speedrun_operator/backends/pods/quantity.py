"""Kubernetes' quantities, such as `1536Mi` or `500m`, as numbers that can be compared. Pure."""

from __future__ import annotations

import re
from decimal import Decimal

_DECIMAL = {each: Decimal(1000) ** power for power, each in enumerate(("", "k", "M", "G", "T", "P", "E"))}
_BINARY = {f"{each}i": Decimal(1024) ** power for power, each in enumerate("KMGTPE", 1)}
_UNITS = {"n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), **_DECIMAL, **_BINARY}
_FORM = re.compile(r"([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)([a-zA-Z]*)")


def amount(text: str) -> Decimal | None:
    """In units of one: bytes, CPUs, pieces. None where it is no quantity."""
    found = _FORM.fullmatch(text.strip())
    if found is None or found[2] not in _UNITS:
        return None
    return Decimal(found[1]) * _UNITS[found[2]]
