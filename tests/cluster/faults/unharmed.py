"""What a user sees of a Speedrun that a fault cost nothing but time."""

from __future__ import annotations

import itertools
from typing import Any

from cluster.faults.story import Story
from cluster.faults.world import World
from cluster.speedruns import Speedruns, condition

LOSS = 3.2782
AT_THE_END = {
    "Admitted": "True",
    "Submitted": "True",
    "Started": "True",
    "BackendReachable": "True",
    "Succeeded": "True",
    "Finished": "True",
}


def unharmed(runs: Speedruns, world: World, told: Story, name: str, job: str) -> dict[str, Any]:
    """`name` came to its result by its one job, and at no time was anything said that was not so; its status."""
    speedrun = runs.get(name)
    status, uid = speedrun["status"], speedrun["metadata"]["uid"]
    assert (status["phase"], status["val_loss"], status["job"]) == ("Succeeded", LOSS, job)
    assert [(each["jobId"], each["reason"]) for each in status["allocations"]] == [(job, "Completed")]
    assert (world.jobs_ever(uid), world.starts(uid)) == ([job], [[job]])
    said = {type_: condition(status, type_).get("status") for type_ in AT_THE_END}
    assert said == AT_THE_END
    assert told.never_went_back(), told.phases()
    assert ends(told)[-1:] == [("Ended", "Completed")] and len(ends(told)) == 1, ends(told)
    for type_, before in (("Finished", "False"), ("Succeeded", "Unknown")):
        assert [word for word, _ in told.said(type_)] == [before, "True"], (type_, told.said(type_))
    return dict(status)


def ends(told: Story) -> list[tuple[str, str]]:
    """(state, reason) of the allocation wherever it was said to have ended, each once for as long as it lasted."""
    allocations = [each["allocations"][0] for each in told.statuses() if each.get("allocations")]
    pairs = [(each["state"], each.get("reason", "")) for each in allocations]
    return [pair for pair, _ in itertools.groupby(pairs) if pair[0] == "Ended"]
