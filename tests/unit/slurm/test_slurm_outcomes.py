"""What a submission's end is called, for everything that Slurm's programs are known to print."""

from __future__ import annotations

import pytest

from speedrun_operator.backends.slurm.outcome import read_outcome
from speedrun_operator.lifecycle.observation import Accepted, Busy, Rejected, Unknown
from unit.slurm.login_node import NAME, LoginNode

FAILED = "sbatch: error: Batch job submission failed: "

ACCEPTED = {
    "parsable": "1042",
    "parsable, of a cluster": "1042;slaking",
    "long form": "Submitted batch job 1042",
    "long form, of a cluster": "Submitted batch job 1042 on cluster slaking",
    "of a cluster called 7": "Submitted batch job 1042 on cluster 7",
    "after a greeting": "*" * 40 + "\nLast login: Mon Jun 1 10:00:00 2026 from 10.0.0.7\n1042",
    "after a budget": "Budget check: 1200 GPU hours left\n----\n--> partition h100 (8 GPUs) ... OK\n1042",
    "after a number": "1200 GPU hours left\n1042",
    "before a number": "1042\n8 GPUs are yours",
}


IN_THE_QUEUE = f"{NAME} 1042 1782900000 PENDING Priority\n"
SQUEUE_OF_TWO_LOOKS = """#!/bin/bash
[ ! -s "{folder}/asked" ] || cat "{folder}/second"
echo "$*" >>"{folder}/asked"
"""


def looked_up(node: LoginNode, second: str) -> None:
    """squeue, whose first look shows nothing and whose second one shows `second`."""
    node.says("squeue")
    folder = node.folder / "squeue"
    (folder / "second").write_text(second)
    (node.programs / "squeue").write_text(SQUEUE_OF_TWO_LOOKS.format(folder=folder))


@pytest.mark.parametrize("form", ACCEPTED)
def test_the_jobs_number_is_found(node: LoginNode, form: str) -> None:
    """BR-012: never the cluster's name, and the job is found again. BR-013: never a number of a site's chatter."""
    node.says("sbatch", f"{ACCEPTED[form]}\n")
    looked_up(node, IN_THE_QUEUE)
    outcome = node.submit()
    assert isinstance(outcome, Accepted) and outcome.job_id == "1042" and outcome.submitted
    assert (node.ledger / "jobid").read_text().split()[0] == "1042"


@pytest.mark.parametrize(("code", "says"), [(0, "it was cancelled"), (1, "scancel -M orca 1042 failed: no access")])
@pytest.mark.parametrize("form", ["1042;orca", "Submitted batch job 1042 on cluster orca"])
def test_a_job_on_another_cluster_is_ended_there(node: LoginNode, form: str, code: int, says: str) -> None:
    """BR-012, of a federation: what squeue does not show here could not be followed."""
    node.says("sbatch", f"{form}\n")
    node.says("scancel", "", "no access\n" if code else "", code)
    outcome = node.submit()
    assert isinstance(outcome, Rejected) and outcome.reason == "SubmissionRejected"
    assert "sbatch gave job 1042 to cluster orca, whose queue this login does not show" in outcome.message
    assert says in outcome.message and "login.host" in outcome.message
    assert node.asked("scancel") == ["-M orca 1042"]
    assert (node.ledger / "owner").read_text() == "cancelled\n", "the job ends at its first line, if it starts"
    assert not (node.ledger / "jobid").exists()
    assert isinstance(node.submit(), Rejected) and len(node.asked("sbatch")) == 1


def test_a_queue_that_does_not_answer_ends_no_job(node: LoginNode) -> None:
    node.says("sbatch", "1042;orca\n")
    node.says("scancel")
    looked_up(node, "squeue: error: Unable to contact slurm controller (connect failure)\n")
    assert isinstance(node.submit(), Accepted) and node.asked("scancel") == []


@pytest.mark.parametrize(
    "noise",
    [
        'sbatch: error: "SBATCH_EXCLUSIVE=true" -- invalid value, ignoring...',
        "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying.",
        "sbatch: no partition specified, using default partition X",
        "sbatch: Required node not available (down, drained or reserved)",
    ],
)
def test_noise_on_stderr_refuses_nothing(node: LoginNode, noise: str) -> None:
    node.says("sbatch", "1042\n", f"{noise}\n")
    assert isinstance(node.submit(), Accepted)


REJECTED = [
    f"sbatch: error: invalid partition specified: compute-h200\n{FAILED}Invalid partition name specified",
    f"{FAILED}Invalid account or account/partition combination specified",
    f"{FAILED}Invalid qos specification",
    f"{FAILED}Requested time limit is invalid (missing or exceeds some limit)",
    f"{FAILED}Node count specification invalid",
    "sbatch: error: invalid number of nodes (-N 2-1)",
    f"{FAILED}Requested node configuration is not available",
    f"sbatch: error: Memory specification can not be satisfied\n{FAILED}Requested node configuration is not available",
    f"sbatch: error: CPU count per node can not be satisfied\n{FAILED}Requested node configuration is not available",
    f"{FAILED}Invalid generic resource (gres) specification",
    f"{FAILED}Invalid feature specification",
    f"{FAILED}Invalid node name specified",
    f"{FAILED}More processors requested than permitted",
    f"{FAILED}Memory required by task is not available",
    "sbatch: error: AssocMaxSubmitJobLimit\n"
    f"{FAILED}Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
    f"{FAILED}User's group not permitted to use this partition",
    f"{FAILED}Access/permission denied",
    f"{FAILED}Invalid user id",
    f"{FAILED}Invalid wckey specification",
    f"{FAILED}Job dependency problem",
    f"{FAILED}Requested reservation is invalid",
    f"{FAILED}Access denied to requested reservation",
    f"{FAILED}Pathname of a file, directory or other parameter too long",
    "sbatch: error: Invalid --time specification",
    "sbatch: unrecognized option '--nosuchopt'\nTry \"sbatch --help\" for more information",
    "sbatch: error: This does not look like a batch script.  The first\nsbatch: error: line must start with #!",
    "sbatch: error: Batch script is empty!",
    "sbatch: error: Batch script contains only whitespace!",
    "sbatch: error: Batch script contains DOS line breaks (\\r\\n)\n"
    "sbatch: error: instead of expected UNIX line breaks (\\n).",
]
BUSY = [
    f"{FAILED}Required partition not available (inactive or drain)",
    f"{FAILED}Requested partition configuration not available now",
    f"{FAILED}Rate limit exceeded, please retry momentarily",
    f"{FAILED}Rate limit exceeded, retry later",
    f"{FAILED}MaxJobCount limit reached",
    f"{FAILED}Unable to create job record, try again",
    f"{FAILED}Unable to contact slurm controller (connect failure)",
    f"{FAILED}Slurm backup controller in standby mode",
    "sbatch: error: Unable to open configuration file\nsbatch: fatal: Unable to process configuration file",
    'sbatch: error: Munge encode failed: Failed to access "/run/munge/munge.socket.2": No such file or directory\n'
    f"{FAILED}Protocol authentication error",
]
UNKNOWN = [
    f"{FAILED}Socket timed out on send/recv operation",
    f"{FAILED}Unable to contact slurm controller (receive failure)",
    f"{FAILED}Message receive failure",
    f"{FAILED}Transport endpoint is not connected",
    f"{FAILED}Zero Bytes were transmitted or received",
    f"{FAILED}I/O error writing script/environment to file",
    f"{FAILED}Unspecified error",
    "sbatch: error: something that nobody has heard of",
    "",
    # A note of an earlier try proves nothing of the last one.
    "sbatch: error: Unable to contact slurm controller (connect failure)\n"
    f"{FAILED}Socket timed out on send/recv operation",
    f"sbatch: Requested node configuration is not available\n{FAILED}Message receive failure",
]


@pytest.mark.parametrize("text", REJECTED)
@pytest.mark.parametrize("code", [1, 255])
def test_what_only_another_spec_heals_is_rejected_and_leaves_nothing(node: LoginNode, text: str, code: int) -> None:
    node.says("sbatch", "", f"{text}\n", code)
    outcome = node.submit()
    assert isinstance(outcome, Rejected) and outcome.reason == "SubmissionRejected"
    assert text.splitlines()[-1] in outcome.message
    assert not node.ledger.exists()


@pytest.mark.parametrize("text", BUSY)
def test_what_heals_by_itself_is_busy_and_can_be_tried_at_once(node: LoginNode, text: str) -> None:
    node.says("sbatch", "", f"{text}\n", 1)
    outcome = node.submit()
    assert isinstance(outcome, Busy) and text.splitlines()[-1] in outcome.message
    node.says("sbatch", "1042\n")
    assert isinstance(node.submit(), Accepted)


@pytest.mark.parametrize("text", UNKNOWN)
def test_what_proves_nothing_is_unknown_and_not_submitted_again(node: LoginNode, text: str) -> None:
    node.says("sbatch", "", f"{text}\n", 1)
    outcome = node.submit()
    assert isinstance(outcome, Unknown) and outcome.reason == "SubmissionUnknown"
    assert (text.splitlines() or ["it printed no reason"])[-1] in outcome.message
    assert isinstance(node.submit(), Unknown)
    assert len(node.asked("sbatch")) == 1
    node.says("squeue", f"{NAME} 1042 1782900000 PENDING Priority\n")
    assert node.submit() == Accepted("1042", read_outcome(["accepted", "1", "1782900000"], "").submitted)  # type: ignore[union-attr]
    assert len(node.asked("sbatch")) == 1


def test_an_answer_without_a_number_is_quoted(node: LoginNode) -> None:
    node.says("sbatch", "request accepted\n")
    outcome = node.submit()
    assert isinstance(outcome, Unknown) and "request accepted" in outcome.message


def test_a_number_with_a_failure_is_no_acceptance(node: LoginNode) -> None:
    node.says("sbatch", "1042\n", f"{FAILED}Unspecified error\n", 1)
    assert isinstance(node.submit(), Unknown)


@pytest.mark.parametrize("stderr", ["", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"])
def test_without_a_look_at_the_queue_nothing_is_submitted(node: LoginNode, stderr: str) -> None:
    node.says("squeue", "", stderr, 1)
    node.says("sbatch", "1042\n")
    outcome = node.submit()
    assert isinstance(outcome, Busy) and (outcome.reason, outcome.reachable) == ("SlurmUnreachable", False)
    assert (stderr or "it printed no reason") in outcome.message
    assert node.asked("sbatch") == []


def test_a_login_without_slurm_says_what_is_missing(node: LoginNode) -> None:
    (node.programs / "squeue").unlink()
    outcome = node.submit()
    assert isinstance(outcome, Busy) and "squeue: command not found" in outcome.message
    node.says("squeue")
    outcome = node.submit()
    assert isinstance(outcome, Busy) and "sbatch: command not found" in outcome.message


def test_the_row_that_a_refused_submission_leaves_is_no_acceptance(node: LoginNode) -> None:
    node.says("squeue", f"{NAME} 1041 1782900000 FAILED BadConstraints\n")
    node.says("sbatch", "", f"{FAILED}Requested node configuration is not available\n", 1)
    assert isinstance(node.submit(), Rejected)


@pytest.mark.parametrize("words", [[], ["accepted"], ["accepted", "cancelled"], ["accepted", ""], ["nonsense", "1"]])
def test_a_broken_answer_is_unknown(words: list[str]) -> None:
    outcome = read_outcome(words, "")
    assert isinstance(outcome, Unknown) and outcome.reason == "AnswerIncomplete"


def test_the_queue_is_asked_by_name_and_sbatch_as_told(node: LoginNode) -> None:
    node.says("sbatch", "1042\n")
    node.submit(arguments=["--parsable", "--comment=a b'c\"$(touch here)"])
    assert node.asked("squeue") == [f"-h --me -t all -n {NAME} -o %j %i %V %T %r"]
    [asked] = node.asked("sbatch")
    home = node.home
    assert asked == (
        f"--parsable --comment=a b'c\"$(touch here) --chdir={node.ledger} --output={node.ledger}/log "
        f"{node.ledger}/script.sh"
    )
    assert not list(home.rglob("here"))
