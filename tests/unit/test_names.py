"""Names by which Kubernetes, Slurm and the file system know a Speedrun."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedrun_operator.api.names import Identity, cluster8, is_object_name

UID = "0f0e0d0c-1111-2222-3333-444455556666"


@pytest.mark.parametrize(
    ("cluster_id", "expected"),
    [
        ("0f0e0d0c-1111-2222-3333-444455556666", "0f0e0d0c"),
        ("lab1", "lab1"),
        ("a", "a"),
        ("12345678", "12345678"),
    ],
)
def test_a_cluster_is_known_by_eight_characters(cluster_id: str, expected: str) -> None:
    assert cluster8(cluster_id) == expected


@given(st.text())
def test_any_text_gives_a_word_for_job_names_and_always_the_same(cluster_id: str) -> None:
    assert re.fullmatch("[a-z0-9]{1,8}", cluster8(cluster_id))
    assert cluster8(cluster_id) == cluster8(cluster_id)


def test_clusters_with_long_names_differ() -> None:
    assert (
        len({cluster8(name) for name in ("production-east", "production-west", "PRODUCTION-east", "production east")})
        == 4
    )


def test_the_job_and_its_directory_are_named_by_what_is_never_given_again() -> None:
    one = Identity("lab", "mine", UID)
    assert one.job_name("c1", 2) == f"sr-c1-{UID}-2"
    assert one.ledger("~/runs", 2) == "~/runs/lab/mine-0f0e0d0c/alloc-2"
    again = Identity("lab", "mine", "ffffffff" + UID[8:])
    assert again.job_name("c1", 2) != one.job_name("c1", 2)
    assert again.ledger("~/runs", 2) != one.ledger("~/runs", 2)
    assert str(one) == "lab/mine"


@pytest.mark.parametrize("name", ["a", "my-attempt", "a.b-c.d", "0", "a" * 63])
def test_names_that_kubernetes_takes(name: str) -> None:
    assert is_object_name(name)


@pytest.mark.parametrize(
    "name", ["", "A", "-a", "a-", ".a", "a..b", "a b", "a\n", "../x", "a/b", "é", "$(id)", "a" * 64]
)
def test_names_that_it_does_not_take(name: str) -> None:
    assert not is_object_name(name)
