"""What a queued job waits for, and what to do about a job that sbatch refused, in words."""

from __future__ import annotations

import pytest

from speedrun_operator.backends.slurm.outcome import read_outcome
from speedrun_operator.backends.slurm.refusals import REJECTED
from speedrun_operator.diagnosis.pending import NEVER, waits_for
from speedrun_operator.diagnosis.refusals import remedy
from speedrun_operator.lifecycle.allocations import after_outcome
from speedrun_operator.lifecycle.observation import Rejected
from unit.builders import REPLAY, at, queued
from unit.lifecycle.lives import Life, heard, seen, woken
from unit.lifecycle.rows import ACCEPTED


@pytest.mark.parametrize(
    ("reason", "gpus", "words"),
    [
        ("Resources", "H100", "no H100 node is free; it starts when one is"),
        ("Resources", None, "no node is free; it starts when one is"),
        ("Priority", "H100", "jobs of higher priority go first"),
        ("BeginTime", None, "it was put off, as after a requeue; it starts by itself"),
        ("(Resources)", "H100", "no H100 node is free; it starts when one is"),
        (
            "ReqNodeNotAvail, UnavailableNodes:a-[012-014],b-001",
            None,
            "nodes that it needs are down, drained or reserved; it starts when they are back (a-[012-014],b-001)",
        ),
        (
            "(ReqNodeNotAvail, UnavailableNodes:a-[012-014],b-001)",
            None,
            "nodes that it needs are down, drained or reserved; it starts when they are back (a-[012-014],b-001)",
        ),
        ("JobHeldUser", None, "it is held: `scontrol release` lets it go on"),
        (
            "launch failed requeued held",
            None,
            "it is held after a failed launch: `scontrol release` lets it go on",
        ),
        (
            "QOSMaxGRESPerUser",
            None,
            "a limit of the account or the quality of service is reached (QOSMaxGRESPerUser)",
        ),
        ("AssocGrpCpuLimit", None, "a limit of the account or the quality of service is reached (AssocGrpCpuLimit)"),
        ("MaxMemPerLimit", None, "a limit of the account or the quality of service is reached (MaxMemPerLimit)"),
        ("SomethingNew", "H100", "SomethingNew"),
        ("", None, ""),
    ],
)
def test_what_a_job_waits_for(reason: str, gpus: str | None, words: str) -> None:
    assert waits_for(reason, gpus) == words


@pytest.mark.parametrize("reason", sorted(NEVER))
def test_a_reason_that_never_goes_names_what_to_change(reason: str) -> None:
    assert waits_for(reason) != reason


def test_a_user_reads_that_no_h100_node_is_free() -> None:
    life = Life({"recipe": {"name": "modded-nanogpt"}, "slurm": {"prepare": "Inline"}})
    for step in (woken(), ACCEPTED.step, seen(queued("Resources"))):
        life.live(step)
    started = next(each for each in life.status.conditions if each.type == "Started")
    assert (started.status, started.reason) == ("False", "Resources")
    assert started.message == "job 17 waits: no H100 node is free; it starts when one is"
    assert life.status.reason == "Resources"


def test_a_refused_partition_says_what_to_change() -> None:
    said = "sbatch: error: Batch job submission failed: Invalid partition name specified"
    life = Life(REPLAY)
    life.live(woken())
    refused = read_outcome(["rejected"], said)
    decision = life.live(heard(refused))
    words = "the cluster has no such partition: use one that `sinfo` lists as spec.slurm.partition"
    assert (life.status.phase, life.status.reason) == ("Failed", "SubmissionRejected")
    assert words in decision.notices[-1].message


@pytest.mark.parametrize("text", [each for each in REJECTED if each[0].isupper()])
def test_a_refusal_keeps_slurms_own_words(text: str) -> None:
    life = Life(REPLAY)
    life.live(woken())
    after = after_outcome(life.status.allocations[0], Rejected("SubmissionRejected", text), at(1))
    assert after.message and after.message.startswith(text)
    assert (after.message == text) == (remedy(text) is None)
