"""What the runs need ready: asked for in turn, shown while it is made, tried again or given up."""

from __future__ import annotations

from typing import Any

import pytest

from speedrun_operator.api.phases import AllocationState, Phase, PreparationState
from speedrun_operator.api.status import Status
from speedrun_operator.lifecycle.decide import decide, is_finished
from speedrun_operator.lifecycle.observation import (
    Accepted,
    Busy,
    Prepared,
    Ready,
    Rejected,
    Underway,
    Unknown,
)
from speedrun_operator.lifecycle.situation import Decision
from speedrun_operator.preparation.manifest import Manifest
from unit.builders import STARTED, JobLog, at, ended, queued, resource, running, situation, unseen

SPEC: dict[str, Any] = {"recipe": {"name": "modded-nanogpt"}}
CODE = Manifest({"bytes": "100", "input.files": "f" * 64, "input.mentions": "e" * 64})
OTHER = Manifest({"bytes": "200"})


def decided(
    status: Status | None = None, seconds: float = 0, spec: dict[str, Any] | None = None, **seen: Any
) -> Decision:
    return decide(situation(resource(spec or SPEC, status or Status()), seconds=seconds, **seen))


def key(decision: Decision, stage: str) -> str:
    return next(each.key for each in decision.status.preparing if each.stage == stage)


def state(decision: Decision, stage: str) -> PreparationState:
    return next(each.state for each in decision.status.preparing if each.stage == stage)


def asked(decision: Decision) -> list[tuple[str, int]]:
    return [(each.need.kind.value, each.after) for each in decision.prepare]


def making(attempt: int = 0, broken: str | None = None) -> Underway:
    return Underway(attempt, str(17 + attempt), at(0), broken)


def code_is_made() -> Decision:
    first = decided()
    return decided(first.status, ensured={key(first, "code"): making()})


def all_ready() -> Decision:
    first = decided()
    known: dict[str, Any] = {key(first, "code"): Ready(CODE)}
    second = decided(first.status, ensured=known)
    known |= {key(second, "image"): Ready(OTHER)}
    third = decided(second.status, ensured=known)
    known |= {key(third, stage): Ready(OTHER) for stage in ("data", "downloads")}
    return decided(third.status, ensured=known)


def test_code_is_asked_for_first_and_nothing_is_submitted() -> None:
    first = decided()
    assert asked(first) == [("code", -1)]
    assert (first.submit, first.status.allocations) == ((), ())
    assert first.status.phase is Phase.PENDING
    assert [each.stage for each in first.status.preparing] == ["code"]


def test_the_rest_follows_in_turn_and_then_the_runs_are_submitted() -> None:
    first = decided()
    known: dict[str, Any] = {key(first, "code"): Ready(CODE)}
    second = decided(first.status, ensured=known)
    assert asked(second) == [("image", -1)]
    known[key(second, "image")] = Ready(OTHER)
    third = decided(second.status, ensured=known)
    assert asked(third) == [("data", -1), ("downloads", -1)]
    assert third.status.phase is Phase.PREPARING
    last = all_ready()
    assert (asked(last), len(last.submit)) == ([], 1)
    assert [(each.stage, each.state, each.bytes) for each in last.status.preparing] == [
        ("code", "Ready", 100),
        ("image", "Ready", 200),
        ("data", "Ready", 200),
        ("downloads", "Ready", 200),
    ]


def test_what_is_made_shows_how_far_it_is() -> None:
    made = code_is_made()
    assert (made.status.phase, state(made, "code")) == (Phase.PREPARING, PreparationState.QUEUED)
    assert asked(made) == []
    log = JobLog().job().mark("stage=code begin").mark("stage=code progress done=1 total=2 unit=steps")
    seen = {key(made, "code"): Prepared(running(log))}
    shown = decided(made.status, prepared=seen)
    record = shown.status.preparing[0]
    assert (record.state, record.done, record.total, record.unit) == (PreparationState.RUNNING, 1, 2, "steps")


def test_why_its_job_waits_is_the_reason() -> None:
    made = code_is_made()
    shown = decided(made.status, prepared={key(made, "code"): Prepared(queued("Resources"))})
    assert (shown.status.phase, shown.status.reason) == (Phase.PREPARING, "Resources")


def test_an_entry_that_is_there_ends_the_wait_whatever_its_job_does() -> None:
    made = code_is_made()
    for job in (unseen(0), queued(), running(STARTED), ended(reason="JobFailed")):
        after = decided(made.status, prepared={key(made, "code"): Prepared(job, CODE)})
        assert state(after, "code") is PreparationState.READY
        assert asked(after) == [("image", -1)]


@pytest.mark.parametrize("reason", ["NodeFailure", "Cancelled", "Preempted", "LaunchFailed", "Completed"])
def test_a_job_that_something_else_ended_is_followed_by_another_one_later(reason: str) -> None:
    made = code_is_made()
    after = decided(made.status, prepared={key(made, "code"): Prepared(ended(STARTED, reason))})
    record = after.status.preparing[0]
    assert (record.state, record.failures, record.not_before) == (PreparationState.WAITING, 1, at(10))
    assert asked(after) == []
    assert after.wake_at == at(10)
    assert any(notice.warning and "tried again from" in notice.message for notice in after.notices)
    assert asked(decided(after.status, seconds=10)) == [("code", 0)]


@pytest.mark.parametrize(
    ("reason", "says"),
    [
        ("JobFailed", "it broke"),
        ("TimeLimit", "its job reached its time limit: raise the setting prepare.minutes"),
        ("OutOfMemory", "its job used more memory than it was given: raise the setting prepare.memory_gib"),
    ],
)
def test_a_job_that_failed_by_itself_ends_the_speedrun_with_its_words(reason: str, says: str) -> None:
    made = code_is_made()
    after = decided(made.status, prepared={key(made, "code"): Prepared(ended(STARTED, reason, message="it broke"))})
    assert is_finished(after.status) and after.status.phase is Phase.FAILED
    assert after.status.reason == ("PrepareFailed" if reason == "JobFailed" else reason)
    said = after.status.runs[0].message or ""
    assert said.startswith(f"preparing code failed: {says} (job 17, log .cache/jobs/")
    assert after.submit == ()


def test_jobs_that_fail_again_and_again_are_given_up() -> None:
    made = code_is_made()
    for failures in range(1, 3):
        made = decided(made.status, prepared={key(made, "code"): Prepared(ended(STARTED, "NodeFailure"))})
        assert made.status.preparing[0].failures == failures
        made = decided(made.status, seconds=100 * failures, ensured={key(made, "code"): making(failures)})
    made = decided(made.status, prepared={key(made, "code"): Prepared(ended(STARTED, "NodeFailure"))})
    assert (made.status.phase, made.status.reason) == (Phase.FAILED, "NodeFailure")


def test_a_job_that_no_witness_knows_is_lost_after_a_time() -> None:
    made = code_is_made()
    after = decided(made.status, prepared={key(made, "code"): Prepared(unseen(299))})
    assert state(after, "code") is PreparationState.QUEUED
    after = decided(made.status, prepared={key(made, "code"): Prepared(unseen(300))})
    assert (after.status.preparing[0].reason, state(after, "code")) == ("JobLost", PreparationState.WAITING)


@pytest.mark.parametrize("outcome", [Busy("StorageFull", "3 of 24 GiB are free"), Unknown("SubmissionUnknown", "?")])
def test_what_cannot_be_asked_for_now_is_said_and_asked_for_again(outcome: Busy | Unknown) -> None:
    first = decided()
    after = decided(first.status, ensured={key(first, "code"): outcome})
    assert (after.status.phase, after.status.reason) == (Phase.PENDING, outcome.reason)
    admitted = next(each for each in after.status.conditions if each.type == "Admitted")
    assert (admitted.status, admitted.reason, admitted.message) == ("False", outcome.reason, outcome.message)
    assert asked(after) == []
    again = decided(after.status)
    assert asked(again) == [("code", -1)]
    healed = decided(again.status, ensured={key(first, "code"): making()})
    admitted = next(each for each in healed.status.conditions if each.type == "Admitted")
    assert admitted.status == "True"


def test_what_slurm_refuses_ends_the_speedrun() -> None:
    first = decided()
    after = decided(first.status, ensured={key(first, "code"): Rejected("SubmissionRejected", "no such partition")})
    assert (after.status.phase, after.status.reason) == (Phase.FAILED, "SubmissionRejected")


def test_a_broken_entry_is_made_anew_once_and_said() -> None:
    first = decided()
    after = decided(first.status, ensured={key(first, "code"): making(0, "files are missing")})
    assert state(after, "code") is PreparationState.QUEUED
    [told] = [notice for notice in after.notices if notice.reason == "CacheBroken"]
    assert "was broken (files are missing) and is made anew" in told.message
    gone = decided(after.status, prepared={key(after, "code"): Prepared(ended(STARTED, "NodeFailure"))})
    twice = decided(gone.status, seconds=60, ensured={key(after, "code"): making(1, "files are missing")})
    assert (twice.status.phase, twice.status.reason) == (Phase.FAILED, "CacheBroken")


def submitted() -> Status:
    done = all_ready()
    return decided(done.status, outcomes={0: Accepted("40", at(0))}).status


def missed(status: Status, allocation: int = 0) -> Decision:
    log = JobLog().attempt(40).begin("data", 1).mark("run=0 stage=data cache=missing key=ab12 why=it%20is%20gone")
    message = "the job missed a cache entry: data ab12: it is gone"
    job = ended(log.end("data", 2, code=75).finish(75), "CacheMissing", message=message)
    return decided(status, observed={allocation: job})


def test_a_training_job_that_misses_an_entry_has_it_made_and_runs_again_once() -> None:
    after = missed(submitted())
    assert not is_finished(after.status)
    assert after.status.allocations[0].state is AllocationState.ENDED
    assert [each.state for each in after.status.preparing] == ["Waiting"] * 4 or asked(after) == [("code", -1)]
    assert after.submit == ()
    assert any("missed a cache entry: data ab12: it is gone; tried again" in each.message for each in after.notices)
    known: dict[str, Any] = {
        each.key: Ready(CODE if each.stage == "code" else OTHER) for each in after.status.preparing
    }
    known |= {each.key: Ready(OTHER) for each in submitted().preparing if each.stage != "code"}
    again = decided(after.status, ensured=known)
    assert [each.allocation for each in again.submit] == [1]
    second = decided(again.status, outcomes={1: Accepted("41", at(0))})
    assert missed(second.status, 1).status.phase is Phase.FAILED


def test_nothing_is_prepared_for_what_is_suspended_or_prepares_by_itself() -> None:
    assert decided(spec={**SPEC, "suspend": True}).prepare == ()
    inline = decided(spec={**SPEC, "slurm": {"prepare": "Inline"}})
    assert (inline.prepare, inline.status.preparing, len(inline.submit)) == ((), (), 1)


def test_what_is_ready_is_not_asked_for_again() -> None:
    status = submitted()
    assert decided(status, seconds=1000).prepare == ()


def test_what_another_login_has_ready_is_asked_for_again() -> None:
    first = decided(login="alice@login:22")
    known = {key(first, "code"): Ready(CODE)}
    second = decided(first.status, ensured=known, login="alice@login:22")
    assert (state(second, "code"), asked(second)) == (PreparationState.READY, [("image", -1)])
    unknown = decided(second.status, login="")
    assert state(unknown, "code") is PreparationState.READY
    for other in ("carol@login:22", None):
        assert asked(decided(second.status, login=other)) == [("code", -1)]
