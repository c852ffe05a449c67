"""Which series and labels a PromQL expression uses: enough of the language for the alerts and the dashboard.

What it does not know it refuses, so that nothing goes unchecked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

RANGED = frozenset({"changes", "rate", "increase"})
AGGREGATIONS = frozenset({"sum", "max", "min", "count"})
FUNCTIONS = RANGED | AGGREGATIONS | {"histogram_quantile", "absent", "time", "vector"}
GROUPINGS = frozenset({"by", "on"})
OPERATORS = frozenset({"and", "or", "unless"})
TOKEN = re.compile(
    r"""(?P<space>\s+)|(?P<string>"(?:[^"\\]|\\.)*")|(?P<number>\d+(?:\.\d+)?)|(?P<name>[A-Za-z_:][\w:]*)"""
    r"""|(?P<range>\[(?:\d+[smhd]|\$__rate_interval)\])|(?P<symbol>=~|!~|!=|==|>=|<=|[-+*/(){},=<>])"""
)


class NotUnderstood(Exception):
    """An expression, or a part of it, that is not in this subset."""


@dataclass
class Selector:
    """A metric with its matchers: label to operator and value."""

    metric: str
    matchers: dict[str, tuple[str, str]] = field(default_factory=dict)
    ranged: bool = False


@dataclass
class Used:
    """What an expression uses. `grouped`: labels of `by` and `on`."""

    selectors: list[Selector] = field(default_factory=list)
    grouped: set[str] = field(default_factory=set)


def used(expression: str) -> Used:
    """Raises NotUnderstood."""
    found, tokens = Used(), [*_tokens(expression)]
    if sum(text == "(" for _, text in tokens) != sum(text == ")" for _, text in tokens):
        raise NotUnderstood(f"parentheses: {expression}")
    place, inside = 0, ""
    while place < len(tokens):
        kind, text = tokens[place]
        after = tokens[place + 1][1] if place + 1 < len(tokens) else ""
        if kind == "name" and text in GROUPINGS:
            labels, place = _names(tokens, place + 1)
            found.grouped |= labels
            continue
        if kind == "name" and (after == "(" or (text in AGGREGATIONS and after == "by")):
            if text not in FUNCTIONS:
                raise NotUnderstood(f"function {text}")
            inside = text
        elif kind == "name" and text not in OPERATORS:
            selector, place = _selector(tokens, place)
            if selector.ranged != (inside in RANGED):
                raise NotUnderstood(
                    f"{selector.metric}: a range goes with changes, rate and increase, and with nothing else"
                )
            found.selectors.append(selector)
            inside = ""
            continue
        place += 1
    return found


def _tokens(expression: str) -> Iterator[tuple[str, str]]:
    place = 0
    while place < len(expression):
        match = TOKEN.match(expression, place)
        if match is None or match.lastgroup is None:
            raise NotUnderstood(f"{expression[place:]!r} of {expression}")
        if match.lastgroup != "space":
            yield match.lastgroup, match.group()
        place = match.end()


def _names(tokens: list[tuple[str, str]], place: int) -> tuple[set[str], int]:
    """The names in parentheses from `place` on, and what comes behind them."""
    if tokens[place][1] != "(":
        raise NotUnderstood("by and on take labels in parentheses")
    end = next(each for each in range(place, len(tokens)) if tokens[each][1] == ")")
    return {text for kind, text in tokens[place:end] if kind == "name"}, end + 1


def _selector(tokens: list[tuple[str, str]], place: int) -> tuple[Selector, int]:
    selector = Selector(tokens[place][1])
    place += 1
    if place < len(tokens) and tokens[place][1] == "{":
        place += 1
        while tokens[place][1] != "}":
            (_, label), (_, operator), (kind, value) = tokens[place : place + 3]
            if kind != "string" or operator not in ("=", "!=", "=~", "!~"):
                raise NotUnderstood(f"matcher {label}{operator}{value}")
            selector.matchers[label] = (operator, value[1:-1])
            place += 4 if tokens[place + 3][1] == "," else 3
        place += 1
    if place < len(tokens) and tokens[place][0] == "range":
        selector.ranged = True
        place += 1
    return selector, place


def faults(expression: str, served: Mapping[str, frozenset[str]], values: Mapping[str, frozenset[str]]) -> list[str]:
    """What does not fit the served series.

    `served`: labels by series. `values`: what a label may be, where that is a short list.
    """
    found, wrong = used(expression), []
    known = {"instance"}  # Prometheus' own
    for each in found.selectors:
        if each.metric not in served:
            wrong.append(f"{each.metric} is not served")
            continue
        known |= served[each.metric]
        for label, (operator, value) in each.matchers.items():
            if label not in served[each.metric]:
                wrong.append(f"{each.metric} has no label {label}")
            named = value.split("|") if operator in ("=~", "!~") else [value]
            wrong += [
                f"{label} is never {one}"
                for one in named
                if label in values and not one.startswith("$") and one not in values[label]
            ]
    wrong += [f"no series here has the label {label}" for label in sorted(found.grouped - known)]
    return wrong
