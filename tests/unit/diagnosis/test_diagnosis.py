"""Logs of failed jobs, read as the operator reads them → the cause, its remedy, and whether it is tried again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedrun_operator.api.phases import Reason
from speedrun_operator.diagnosis import Retry, Rule, Sign, diagnose, for_pods, rule_of, sign_of
from speedrun_operator.diagnosis.diagnose import RULES
from unit.builders import JobLog
from unit.diagnosis.signs import SIGNS
from unit.diagnosis.troubles import CANCELLED, GUIDE, SIGNATURES, SRUN, TORCHRUN, Trouble

TROUBLES = {**GUIDE, **SIGNATURES, **SIGNS}


@pytest.mark.parametrize("trouble", TROUBLES.values(), ids=TROUBLES)
def test_the_cause_in_a_log(trouble: Trouble) -> None:
    record = trouble.log.read().run(0)
    assert record is not None
    rule = diagnose(trouble.ended, record.symptoms)
    assert rule is not None
    assert rule.reason == trouble.reason
    if trouble.reason not in ("JobFailed", "TimeLimit"):
        assert trouble.remedy in rule.message
        assert (rule.retry is not Retry.NEVER) == (trouble.wait is not None)


@pytest.mark.parametrize(
    ("rule", "sign"), [pytest.param(rule, sign, id=sign.text) for rule in RULES for sign in rule.signs]
)
def test_every_sign_has_a_log_that_it_alone_explains(rule: Rule, sign: Sign) -> None:
    """So that none can be lost unseen."""
    logs = [trouble.lines for trouble in TROUBLES.values() if trouble.reason == rule.reason]
    shown = [{each for each in rule.signs for line in lines if each.is_in(line)} for lines in logs]
    assert {sign} in shown


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("srun: Job 17 step creation temporarily disabled, retrying (Requested nodes are busy)", None),
        ("srun: Job 17 step creation temporarily disabled, retrying (Job prolog is still running)", None),
        ("srun: Job 17 step creation temporarily disabled, retrying (Requested operation is presently disabled)", None),
        ("step:5/20 train_time:1ms", None),
        ("Xid is a word, and so is oom", None),
        ("the paper reports error 429 in 401 cases", None),
        ("[ERROR] URL https://ghcr.io/v2/acme/x/manifests/1 returned error code: 500", None),
        ("https://ghcr.io/v2/acme/x/manifests/1 returned error code: 401", None),
        ("", None),
    ],
)
def test_a_line(line: str, reason: str | None) -> None:
    assert sign_of(line) == reason


@given(st.text())
def test_no_line_makes_it_fail(line: str) -> None:
    assert sign_of(line) is None or rule_of(sign_of(line)) is not None


def test_the_earliest_specific_sign_wins_and_wrappers_come_last() -> None:
    wrapper, general, specific, later = "JobFailed", "HFNetwork", "CudaOOM", "HFRateLimit"
    assert diagnose("JobFailed", [wrapper, general, specific, later]) == rule_of(specific)
    assert diagnose("JobFailed", [wrapper, general]) == rule_of(general)
    assert diagnose("JobFailed", [wrapper]) == rule_of(wrapper)
    assert diagnose("JobFailed", []) is None
    assert diagnose("JobFailed", ["OfAnOlderVersion"]) is None


@pytest.mark.parametrize("ended", ["NodeFailure", "Preempted", "TimeLimit", "OutOfMemory", "LaunchFailed"])
def test_the_schedulers_word_goes_before_what_a_dying_program_prints(ended: str) -> None:
    assert diagnose(ended, ["NCCLTimeout", "JobFailed"]) == rule_of(ended)


@pytest.mark.parametrize("ended", ["JobLost", "Stalled", "SubmissionRejected", "SomethingNew"])
def test_an_end_that_logs_do_not_explain(ended: str) -> None:
    assert diagnose(ended, ["HFRateLimit"]) is None


@pytest.mark.parametrize("kind", ["Preempted", "NodeFailure", "TimeLimit", "Requeued"])
def test_a_cancellation_that_the_log_tells_apart(kind: str) -> None:
    assert diagnose("Cancelled", ["CudaOOM", kind]) == rule_of(kind)
    assert diagnose("Cancelled", ["CudaOOM"]) == rule_of("Cancelled")


def test_what_a_stage_survived_says_nothing_of_the_next() -> None:
    survived = JobLog().attempt().begin("data", 3).line("429 Client Error: Too Many Requests").end("data", 9)
    run = survived.begin("train", 10).line(*TORCHRUN).end("train", 20, code=1).read().run(0)
    assert run is not None
    assert run.symptoms == ("JobFailed",)


def test_what_came_before_training_did_not_end_it() -> None:
    """Else a run that was bad would be dropped for a download that was slow."""
    log = JobLog().attempt().begin("train", 10).line("429 Client Error: Too Many Requests", "Resetting Model").step(5)
    run = log.line(*TORCHRUN).end("train", 20, code=1).finish(1).read().run(0)
    assert run is not None
    assert (run.trained, run.symptoms) == (True, ("JobFailed",))


def test_a_sign_outside_of_runs_is_the_jobs() -> None:
    read = JobLog().job().line("srun: error: Expired or invalid job 17").read()
    assert (read.runs, read.symptoms) == ((), ("NodesRestarted",))
    after = JobLog().attempt().finish(1).line(f"{CANCELLED} DUE TO NODE FAILURE, SEE SLURMCTLD LOG ***").read()
    assert after.symptoms == ("NodeFailure",)


def test_source_code_in_a_log_is_no_sign() -> None:
    source = ("import torch", "assert torch.cuda.is_available()", "=" * 100)
    run = JobLog(source).attempt().line(SRUN).read().run(0)
    assert run is not None
    assert run.symptoms == ("JobFailed",)


def test_every_rule_can_be_read_by_a_person_and_by_a_program() -> None:
    reasons = [rule.reason for rule in RULES]
    assert len(set(reasons)) == len(reasons)
    for rule in RULES:
        assert re.fullmatch(r"[A-Z][A-Za-z0-9]{2,62}", rule.reason)
        assert rule.says and rule.remedy and len(rule.message) < 400
        assert rule.signs or rule.ends
        assert rule.retry is not Retry.NEVER or rule.wait_seconds == 0
    assert {each.value for each in Reason} >= {word for rule in RULES for word in rule.ends}


@pytest.mark.parametrize("rule", [each for each in RULES if each.in_pods], ids=lambda each: each.reason)
def test_a_pod_is_told_nothing_of_slurm(rule: Rule) -> None:
    said = for_pods(rule.reason, f"{rule.message}; it was in stage train")
    assert said == f"{rule.says}: {rule.in_pods}; it was in stage train"
    assert "slurm" not in said.lower()


@pytest.mark.parametrize("reason", ["RegistryRateLimit", "RegistryRefused"])
def test_credentials_for_a_registry_are_a_secret_that_the_spec_names(reason: str) -> None:
    """A file on the cluster does not help: enroot reads it only for references that name a user."""
    rule = rule_of(reason)
    assert rule is not None
    assert ".credentials" not in rule.message
    assert "spec.slurm.registrySecretRef" in rule.message
    assert "spec.pods.imagePullSecrets" in (for_pods(reason, rule.message) or "")


def test_the_documented_table_is_this_one() -> None:
    text = (Path(__file__).parents[3] / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    assert table() in text, f"docs/troubleshooting.md should have:\n{table()}"


def _remedy(rule: Rule) -> str:
    return f"{rule.remedy}. In a pod: {rule.in_pods}" if rule.in_pods else rule.remedy


def table() -> str:
    rows = [f"| `{rule.reason}` | {rule.says} | {_remedy(rule)} | {_again(rule)} |" for rule in RULES]
    return "\n".join(["| reason | what happened | what to do | tried again |", "| --- | --- | --- | --- |", *rows])


def _again(rule: Rule) -> str:
    if rule.retry is Retry.NEVER:
        return "once, with more time" if rule.reason == Reason.TIME_LIMIT.value else "no"
    said = "yes" if rule.wait_seconds == 0 else f"after {rule.wait_seconds // 60} min"
    if rule.retry is Retry.FREE:
        said += ", at most five times, outside `backoffLimit`"
    return said if rule.infrastructure else f"{said}, before training"
