"""Numbers as logs print them, read without surprises.

Only ASCII digits of a bounded length count: `Decimal` and `int` alone would also take underscores, digits of other
scripts and exponents that fill the memory, all of which a training program may print. What is no such number is None,
never an error.
"""

import re
from decimal import ROUND_HALF_UP, Decimal

MAX_MILLISECONDS = 10**15
"""Times beyond this are no times: it leaves room for seconds since 1970 and fits every JSON reader."""

_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,24}(?:\.[0-9]{0,24})?|\.[0-9]{1,24})(?:[eE][+-]?[0-9]{1,2})?")
_NOT_FINITE = re.compile(r"[+-]?(?:nan|inf|infinity)", re.IGNORECASE)
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_SCALE = {"ms": Decimal(1), "s": Decimal(1000)}


def decimal(text: str) -> Decimal | None:
    """A finite decimal number (`3.2785`, `+3.25`, `7.5E-05`), exactly as written; None for anything else."""
    return Decimal(text) if _NUMBER.fullmatch(text) else None


def integer(text: str) -> int | None:
    """A whole number of at most 18 digits; None for anything else."""
    return int(text) if _INTEGER.fullmatch(text) else None


def is_not_finite(text: str) -> bool:
    """Whether `text` is how a program prints a number that is none: `nan`, `inf`, `-inf`."""
    return _NOT_FINITE.fullmatch(text) is not None


def milliseconds(text: str, unit: str = "s") -> int | None:
    """A time of `unit` (`ms` or `s`), rounded to whole milliseconds; None when it is no number, negative or absurd."""
    number = decimal(text)
    # The bound is tried on the number as printed as well: multiplying or rounding 1e99 would be work for nothing.
    if number is None or not 0 <= number <= MAX_MILLISECONDS:
        return None
    whole = int((number * _SCALE[unit]).to_integral_value(ROUND_HALF_UP))
    return whole if whole <= MAX_MILLISECONDS else None


def suffixed(text: str) -> tuple[str, str]:
    """`573ms` -> (`573`, `ms`), `1.5s` -> (`1.5`, `s`); the unit is empty where there is none."""
    for unit in ("ms", "s"):
        if text.endswith(unit):
            return text.removesuffix(unit), unit
    return text, ""
