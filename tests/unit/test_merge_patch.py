"""The patch of status: applied as RFC 7386 says, it makes the new one of the old one, and nothing more."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speedrun_operator.kube.client import merge_patch


def apply(target: Any, patch: Any) -> Any:
    """MergePatch of RFC 7386, section 2, word by word."""
    if not isinstance(patch, dict):
        return patch
    if not isinstance(target, dict):
        target = {}
    for name, value in patch.items():
        if value is None:
            target.pop(name, None)
        else:
            target[name] = apply(target.get(name), value)
    return target


names = st.sampled_from(["a", "b", "c", "phase"])
leaves = st.booleans() | st.integers(2, 9) | st.floats(10, 99, allow_nan=False) | st.text(max_size=3)
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4), max_leaves=12
)
objects = st.dictionaries(names, values, max_size=4)  # no null: absent means absent in a status


@settings(deadline=None)
@given(objects, objects)
def test_applying_it_gives_the_new_object(old: dict[str, Any], new: dict[str, Any]) -> None:
    kept = copy.deepcopy((old, new))
    patch = merge_patch(old, new)
    assert (old, new) == kept
    assert apply(copy.deepcopy(old), patch) == new
    assert (patch == {}) == (old == new)


@settings(deadline=None)
@given(objects)
def test_nothing_changed_is_an_empty_patch(each: dict[str, Any]) -> None:
    assert merge_patch(each, copy.deepcopy(each)) == {}


@pytest.mark.parametrize(
    ("old", "new", "patch"),
    [
        pytest.param({}, {"a": 1}, {"a": 1}, id="new"),
        pytest.param({"a": 1}, {}, {"a": None}, id="gone"),
        pytest.param({"a": 1}, {"a": 2}, {"a": 2}, id="changed"),
        pytest.param({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}, {"a": {"c": 3}}, id="inside: only what changed"),
        pytest.param({"a": {"b": 1}}, {"a": {}}, {"a": {"b": None}}, id="inside: all gone"),
        pytest.param({"a": [1, 2]}, {"a": [1, 2, 3]}, {"a": [1, 2, 3]}, id="lists go whole"),
        pytest.param({"a": {"b": 1}}, {"a": 5}, {"a": 5}, id="an object becomes a number"),
        pytest.param({"a": 5}, {"a": {}}, {"a": {}}, id="a number becomes an empty object"),
    ],
)
def test_the_patch(old: dict[str, Any], new: dict[str, Any], patch: dict[str, Any]) -> None:
    assert merge_patch(old, new) == patch
    assert apply(copy.deepcopy(old), patch) == new
