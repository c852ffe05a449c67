"""Each trouble that a job can meet as it prepares, in the default mode: its log goes in; record, status, conditions and
events say what it was, what to do, and when it is tried again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from speedrun_operator.api.phases import ConditionType, Phase, PreparationState
from speedrun_operator.api.status import Status, rfc3339
from speedrun_operator.lifecycle.observation import Prepared, Ready
from speedrun_operator.lifecycle.situation import Decision
from unit.builders import JobLog, at, ended
from unit.diagnosis.troubles import GUIDE, HUB, SIGNATURES, Trouble, pyxis
from unit.lifecycle.test_preparing import CODE, OTHER, asked, decided, key, making

ORDER = ("code", "image", "data", "downloads")
# What is fetched besides the data, in words that the table has of training jobs that fetch it by themselves.
FETCHED = {
    "the kernel download from Hugging Face fails": GUIDE["the kernel download from Hugging Face fails"],
    "no build of the kernel": SIGNATURES["no build of the kernel"],
}
# Jobs that prepare are bounded by settings; and whoever cancelled one is not waiting for it: this Speedrun is.
OF_THEIR_OWN: dict[str, dict[str, Any]] = {
    "the job ends at the time limit": {"remedy": "raise the setting prepare.minutes", "wait": None},
    "host memory": {"remedy": "raise the setting prepare.memory_gib"},
    "host memory, in srun's words": {"remedy": "raise the setting prepare.memory_gib"},
}
ALL = {**GUIDE, **SIGNATURES}
TROUBLES = {name: each for name, each in ALL.items() if each.stage in ORDER}
TROUBLES |= {name: replace(each, stage="downloads") for name, each in FETCHED.items()}
TROUBLES |= {name: replace(TROUBLES[name], **changes) for name, changes in OF_THEIR_OWN.items()}
TROUBLES |= {
    "a node that is gone": Trouble(
        "code",
        ("srun: error: Unable to create step for job 17: Required node not available (down, drained or reserved)",),
        "NodesRestarted",
        "run again once they are back",
        wait=180,
    ),
    "an image that is not open to all": Trouble(
        "image",
        pyxis(f"{HUB}/acme/private/manifests/1 returned error code: 401"),
        "RegistryRefused",
        "spec.slurm.registrySecretRef names the Secret",
    ),
    "a cancelled job": Trouble(
        "data",
        ("slurmstepd: error: *** JOB 17 ON n CANCELLED AT 2026-07-01T12:00:50 ***",),
        "Cancelled",
        "the job was cancelled by user id 1000",
        wait=0,
        ended="Cancelled",
    ),
    "a failed node": Trouble("image", (), "NodeFailure", "spec.slurm.exclude", wait=0, ended="NodeFailure"),
    "no words at all": Trouble("code", (), "PrepareFailed", "the script failed"),
}
WORDS = {"Cancelled": "the job was cancelled by user id 1000"}


def made_by_a_job(stage: str) -> Status:
    """A Speedrun whose entry of `stage` a job makes, and what comes before is there."""
    decision = decided()
    for each in ORDER[: ORDER.index(stage)]:
        if not any(each == record.stage for record in decision.status.preparing):
            continue
        known = {key(decision, each): Ready(CODE if each == "code" else OTHER)}
        decision = decided(decision.status, ensured=known)
    return decided(decision.status, ensured={key(decision, stage): making()}).status


def log(trouble: Trouble) -> JobLog:
    """The whole log of a job that prepares, and belongs to no run."""
    begun = JobLog().job().mark(f"stage={trouble.stage} begin", 4).line(*trouble.lines)
    return begun.mark(f"stage={trouble.stage} end exit=1", 20).closed(1)


def failed(trouble: Trouble) -> Decision:
    status = made_by_a_job(trouble.stage)
    said = WORDS.get(trouble.ended, "the script failed")
    job = ended(log(trouble), trouble.ended, message=said)
    record = next(each for each in status.preparing if each.stage == trouble.stage)
    assert record.state is PreparationState.QUEUED
    return decided(status, prepared={record.key: Prepared(job)})


@pytest.mark.parametrize("trouble", TROUBLES.values(), ids=TROUBLES)
def test_a_trouble(trouble: Trouble) -> None:
    decision = failed(trouble)
    status = decision.status
    record = next(each for each in status.preparing if each.stage == trouble.stage)
    assert (record.reason, record.failures) == (trouble.reason, 1)
    assert trouble.remedy in (record.message or "")
    assert f"preparing {trouble.stage} failed: " in (record.message or "")
    told = next(each for each in decision.notices if each.message.startswith("preparing "))
    assert told.reason == trouble.reason
    assert told.warning and trouble.remedy in told.message
    assert status.reason == trouble.reason
    assert status.allocations == ()
    assert trouble.stage not in dict(asked(decision))
    if trouble.wait is None:
        assert (record.state, record.not_before) == (PreparationState.FAILED, None)
        assert "tried again from" not in told.message
        finished = status.condition(ConditionType.FINISHED)
        assert finished and (finished.status, finished.reason) == ("True", trouble.reason)
        assert trouble.remedy in finished.message
        assert status.phase is Phase.FAILED
        return
    wait = max(10, trouble.wait)
    assert (record.state, record.not_before) == (PreparationState.WAITING, at(wait))
    assert f"tried again from {rfc3339(at(wait))}" in told.message
    assert decision.wake_at == at(wait)
    assert status.phase in (Phase.PENDING, Phase.PREPARING)
    admitted = status.condition(ConditionType.ADMITTED)
    assert admitted and (admitted.status, admitted.reason) == ("False", trouble.reason)
    assert trouble.remedy in admitted.message
    assert (trouble.stage, 0) not in asked(decided(status, seconds=wait - 1))
    assert (trouble.stage, 0) in asked(decided(status, seconds=wait))
