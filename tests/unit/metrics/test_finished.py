"""What is kept of finished Speedruns, as they finish and as lists show them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from speedrun_operator.api.phases import Phase
from speedrun_operator.api.resource import Resource
from speedrun_operator.finished import Finished
from unit.builders import at, raw


def ended(name: str, second: int, phase: str = "Succeeded", *, labelled: bool = True) -> dict[str, Any]:
    made = raw(status={"phase": phase, "val_loss": 3.2, "completionTime": at(second).isoformat()}, name=name)
    made["metadata"] |= {"uid": name, "labels": {"speedrun.dev/finished": "true"} if labelled else {}}
    return made


def lists(finished: Finished, objects: Iterable[dict[str, Any]]) -> None:
    finished.begin()
    for each in objects:
        finished.listed(each)
    finished.done()


def names(finished: Finished) -> list[str]:
    return [each.identity.name for each in finished.newest()]


def note(finished: Finished, name: str, second: int, phase: str = "Succeeded") -> None:
    finished.note(Resource.parse(ended(name, second, phase, labelled=False)))


def test_one_is_known_as_soon_as_it_finishes() -> None:
    finished = Finished(5)
    note(finished, "one", 1)
    assert names(finished) == ["one"]
    assert finished.counts() == {("lab", Phase.SUCCEEDED): 1}


def test_a_list_shows_it_once() -> None:
    finished = Finished(5)
    note(finished, "one", 1)
    lists(finished, [ended("one", 1), ended("two", 2, "Failed")])
    assert names(finished) == ["two", "one"]
    assert finished.counts() == {("lab", Phase.SUCCEEDED): 1, ("lab", Phase.FAILED): 1}
    finished.note(Resource.parse(ended("one", 1)))
    assert sum(finished.counts().values()) == 2, "it has its label: the list has counted it"


def test_what_a_list_does_not_show_is_gone() -> None:
    finished = Finished(5)
    note(finished, "one", 1)
    lists(finished, [ended("one", 1), ended("two", 2)])
    lists(finished, [ended("two", 2)])
    assert names(finished) == ["two"]
    note(finished, "three", 3)
    lists(finished, [ended("two", 2)])
    assert names(finished) == ["two"], "three was deleted before the list began"


def test_what_finishes_while_a_list_is_read_is_not_taken_for_deleted() -> None:
    finished = Finished(5)
    note(finished, "early", 1)
    finished.begin()
    note(finished, "early", 1)  # seen again: its label is not on it yet
    note(finished, "late", 2)
    finished.done()
    assert names(finished) == ["late", "early"]
    assert sum(finished.counts().values()) == 2


def test_a_list_that_breaks_off_changes_nothing() -> None:
    finished = Finished(5)
    lists(finished, [ended("one", 1)])
    finished.begin()
    lists(finished, [ended("one", 1)])
    assert names(finished) == ["one"]


def test_only_the_newest_are_kept_and_all_are_counted() -> None:
    finished = Finished(3)
    lists(finished, [ended(f"run-{each}", (each * 37) % 100) for each in range(100)])
    note(finished, "now", 1000)
    assert [each.ended for each in finished.newest()] == [at(1000), at(99), at(98)]
    assert finished.counts() == {("lab", Phase.SUCCEEDED): 101}
    none = Finished(0)
    lists(none, [ended("one", 1)])
    assert (none.newest(), none.counts()) == ([], {("lab", Phase.SUCCEEDED): 1})


def test_what_is_known_is_not_read_again_unless_it_changed() -> None:
    finished = Finished(3)
    lists(finished, [ended("one", 1)])
    first = finished.newest()[0]
    lists(finished, [ended("one", 1)])
    assert finished.newest()[0] is first
    changed = ended("one", 1)
    changed["metadata"]["resourceVersion"] = "2"
    lists(finished, [changed])
    assert finished.newest()[0] is not first
