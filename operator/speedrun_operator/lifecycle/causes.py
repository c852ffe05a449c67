"""What ended an allocation and its runs: the backend's word and the log's signs, as `diagnosis` reads them.

A cause that the log shows is written to the allocation, so that retries can be worked out again from status alone. One
that is not to be tried again, since the run had reached Training, is written to the run only: it must not count.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from speedrun_operator.api.phases import Reason
from speedrun_operator.api.status import Allocation
from speedrun_operator.diagnosis import Retry, Rule, Weight, diagnose, rule_of
from speedrun_operator.lifecycle.observation import JobState, Observed
from speedrun_operator.progress.allocation import AllocationProgress, RunRecord

OWN_ENDS = frozenset({None, Reason.COMPLETED.value, Reason.JOB_FAILED.value})
"""What a backend says of a job whose program ended by itself."""

KILLED = frozenset({137, 143})

NODES_IN_TURN = timedelta(minutes=30)
"""Nodes restart after the controller and one at a time: so much later a job may start on one that is yet to go."""

_TAKEN_AWAY = frozenset({
    Reason.CANCELLED.value, Reason.NODE_FAILURE.value, Reason.NODES_RESTARTED.value, "Requeued",
})  # fmt: skip


def is_of_the_log(reason: str | None) -> bool:
    """Whether a reason is one that only a log shows: the program ended by itself."""
    rule = rule_of(reason)
    return rule is not None and reason not in rule.ends


def ended_by_itself(reason: str | None) -> bool:
    """Whether an allocation with this reason ended as programs do, and was not taken away."""
    return reason in OWN_ENDS or is_of_the_log(reason)


def of_job(
    allocation: Allocation, seen: Observed, controller_started: datetime | None
) -> tuple[str | None, str | None]:
    """Reason and message of an allocation that ended. `controller_started`: when Slurm's controller was, last."""
    word, log = seen.reason, seen.log or AllocationProgress()
    if nodes_restarted(seen, controller_started):
        word = Reason.NODES_RESTARTED.value
    if word not in OWN_ENDS or word == Reason.CANCELLED.value:
        rule = diagnose(word, _all_symptoms(log))
        if rule is None:
            return word, seen.message
        return rule.reason, _words(rule, seen.message if rule.reason == seen.reason else None)
    found = [(rule, trained) for rule, trained in (_of_run(index, log) for index in allocation.runs) if rule]
    again = next((rule for rule, trained in found if rule.runs_again(trained=trained)), None)
    final = next((rule for rule, _ in found if rule.retry is Retry.NEVER), None)
    told = again or final
    return (told.reason, told.message) if told is not None else (word, seen.message)


def of_run(record: RunRecord | None, log: AllocationProgress | None) -> Rule | None:
    """The cause of the failure of a run that ended by itself. None: no sign says more than that it failed."""
    log = log or AllocationProgress()
    symptoms = record.symptoms if record is not None else ()
    if record is None or record is log.runs[-1]:
        symptoms = (*symptoms, *log.symptoms)
    rule = diagnose(Reason.JOB_FAILED.value, symptoms)
    return rule if rule is not None and rule.reason != Reason.JOB_FAILED.value else None


def has_result(record: RunRecord | None) -> bool:
    """Whether a run has a result: a last validation, or a loss that was no number."""
    return record is not None and (record.progress.final is not None or record.progress.diverged_step is not None)


def _of_run(index: int, log: AllocationProgress) -> tuple[Rule | None, bool]:
    record = log.run(index)
    if has_result(record):
        return None, True
    return of_run(record, log), record is not None and record.trained


def _all_symptoms(log: AllocationProgress) -> tuple[str, ...]:
    last = log.runs[-1].symptoms if log.runs else ()
    return (*last, *log.symptoms)


def _words(rule: Rule, said: str | None) -> str:
    return f"{said}: {rule.remedy}" if said else rule.message


def may_be_a_restart(seen: Observed) -> bool:
    """Whether a job ended as a restart of its node would end it, so that it is worth asking whether there was one."""
    killed = seen.reason == Reason.JOB_FAILED.value and seen.log is not None and seen.log.exit_code in KILLED
    return seen.state is JobState.ENDED and (seen.reason == Reason.NODE_FAILURE.value or killed)


def nodes_restarted(seen: Observed, controller_started: datetime | None) -> bool:
    """Whether that ended a job: a platform that adds or removes an account restarts Slurm's controller, and then each
    node with its jobs.

    Only of jobs that were there then: a controller that is new tells nothing of a node that fails later. And only where
    the log of one that was killed shows no cause of its own.
    """
    since = seen.submitted or seen.started
    if controller_started is None or since is None or not may_be_a_restart(seen):
        return False
    if seen.started is not None:
        since = max(since, seen.started - NODES_IN_TURN)
    if not since < controller_started <= (seen.ended or seen.asked):
        return False
    return seen.reason == Reason.NODE_FAILURE.value or not _has_its_own_cause(seen.log)


def _has_its_own_cause(log: AllocationProgress | None) -> bool:
    rules = [rule for each in _all_symptoms(log or AllocationProgress()) if (rule := rule_of(each))]
    return any(rule.weight is Weight.SPECIFIC and rule.reason not in _TAKEN_AWAY for rule in rules)
