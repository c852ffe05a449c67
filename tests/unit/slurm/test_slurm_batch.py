"""Several submissions in one remote command: each item's answer is its own, in the real bash."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from speedrun_operator.api.names import Identity
from speedrun_operator.api.spec import Spec
from speedrun_operator.backends.slurm import commands, script
from speedrun_operator.backends.slurm.commands import Submission
from speedrun_operator.lifecycle.observation import Accepted, Busy, Outcome, Rejected, Unknown
from speedrun_operator.planning import RunPlan, Site, plan
from speedrun_operator.recipes.recipe import shipped
from unit.slurm.login_node import NAME, NONCE, PREFIX, SINCE, LoginNode

# An sbatch that says what stands in a file that is called like the comment, or else takes the job.
SBATCH = """#!/bin/bash
for each; do case $each in --comment=*) what=${each#*=} ;; esac; done
printf '%s\\n' "$*" >>"FOLDER/asked"
[ -z "$what" ] || { printf 'sbatch: error: %s\\n' "$what" >&2; exit 1; }
wc -l <"FOLDER/asked"
"""
LIMITED = "Batch job submission failed: Rate limit exceeded, please retry momentarily"
REFUSED = "Batch job submission failed: Invalid partition name specified"
CLOSED = "Batch job submission failed: Requested reservation not usable now"
SILENT = "Batch job submission failed: Socket timed out on send/recv operation"


@pytest.fixture
def node(tmp_path: Path) -> LoginNode:
    made = LoginNode(tmp_path)
    made.says("sbatch")
    (made.programs / "sbatch").write_text(SBATCH.replace("FOLDER", str(tmp_path / "sbatch")))
    (made.programs / "wc").symlink_to("/usr/bin/wc")
    return made


def items(*errors: str, package: bytes = b"") -> list[Submission]:
    """One for each of sbatch's errors; none where it is empty."""
    return [
        Submission(
            name=f"{PREFIX}{number:08}-1111-2222-3333-444455556666-0",
            path=f"lab/mine-{number:08}/alloc-0",
            since=SINCE,
            arguments=["--parsable", *([f"--comment={error}"] if error else [])],
            script=f"#!/bin/bash\necho 'number {number}'\n",
            package=package,
        )
        for number, error in enumerate(errors)
    ]


def kinds(outcomes: list[Outcome | None]) -> list[str]:
    return ["later" if each is None else type(each).__name__ for each in outcomes]


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        (["", "", ""], ["Accepted", "Accepted", "Accepted"]),
        (["", REFUSED, ""], ["Accepted", "Rejected", "Accepted"]),
        ([CLOSED, "", REFUSED, ""], ["Busy", "Accepted", "Rejected", "Accepted"]),
        (["", LIMITED, "", REFUSED], ["Accepted", "Busy", "later", "later"]),
        (["", SILENT, ""], ["Accepted", "Unknown", "later"]),
        (["", "something that nobody has heard of", ""], ["Accepted", "Unknown", "Accepted"]),
    ],
)
def test_each_item_has_its_own_outcome(node: LoginNode, errors: list[str], expected: list[str]) -> None:
    batch = items(*errors)
    outcomes = node.batch(batch)
    assert kinds(outcomes) == expected
    for item, error, outcome in zip(batch, errors, outcomes, strict=True):
        ledger = node.home / "runs" / item.path
        if isinstance(outcome, Accepted):
            assert (ledger / "script.sh").read_text() == item.script
            assert (ledger / "jobid").read_text().split()[0] == outcome.job_id
        elif isinstance(outcome, Unknown):
            assert error in outcome.message and (ledger / "claim-1").exists()
        else:
            assert outcome is None or error in outcome.message
            assert not ledger.exists(), "what is certainly not submitted leaves nothing behind"


def rendered(number: int, steps: int) -> Submission:
    """A Speedrun's real script; `steps` makes the plan another."""
    identity = Identity("lab", f"mine-{number}", f"{number:08}-1111-2222-3333-444455556666")
    spec = Spec.model_validate({"recipe": {"name": "replay", "parameters": {"steps": steps, "valLoss": "3.1"}}})
    made = plan(spec, shipped(), Site())
    assert isinstance(made, RunPlan)
    text = script.render(made.for_runs([(0, "A")]), identity, 0, "~/it's runs", "python3")
    name = identity.job_name("c1c1c1c1", 0)
    return Submission(name, f"lab/mine-{number}/alloc-0", SINCE, ["--parsable"], text)


def test_scripts_of_one_plan_travel_once_and_arrive_as_they_are(node: LoginNode) -> None:
    batch = [rendered(number, steps=10 + number % 2) for number in range(20)]
    assert len({each.script for each in batch}) == 20
    assert kinds(node.batch(batch)) == ["Accepted"] * 20
    for each in batch:
        assert (node.home / "runs" / each.path / "script.sh").read_text() == each.script
    [one, two, many] = [len(commands.submit(root="r", nonce=NONCE, items=batch[:count])[0]) for count in (1, 2, 20)]
    assert two - one > len(batch[0].script), "another plan"
    assert many < two + 20 * 1000


def test_all_are_looked_up_at_once(node: LoginNode) -> None:
    batch = items("", "", "")
    node.says("squeue", f"{batch[1].name} 77 1782900000 PENDING Priority\n")
    outcomes = node.batch(batch)
    assert kinds(outcomes) == ["Accepted"] * 3
    assert isinstance(outcomes[1], Accepted) and outcomes[1].job_id == "77"
    assert len(node.asked("squeue")) == 1 and len(node.asked("sbatch")) == 2
    assert (node.home / "runs" / batch[1].path / "jobid").read_text() == "77 1782900000\n"


def test_a_name_that_stands_twice_is_submitted_once(node: LoginNode) -> None:
    [one] = items("")
    first, second = node.batch([one, one])
    assert first == second and isinstance(first, Accepted)
    assert len(node.asked("sbatch")) == 1


def test_a_batch_that_is_sent_again_submits_nothing(node: LoginNode) -> None:
    batch = items("", "")
    first = node.batch(batch)
    assert node.batch(batch) == first and len(node.asked("sbatch")) == 2


def test_where_the_queue_does_not_answer_only_the_ledger_speaks(node: LoginNode) -> None:
    batch = items("", "", "")
    node.batch(batch[:1])
    node.says("squeue", "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n", 1)
    outcomes = node.batch(batch)
    assert kinds(outcomes) == ["Accepted", "Busy", "Busy"]
    assert isinstance(outcomes[2], Busy) and "Unable to contact slurm controller" in outcomes[2].message
    assert len(node.asked("sbatch")) == 1


def test_others_go_on_where_one_is_claimed_or_cancelled(node: LoginNode) -> None:
    batch = items("", "", "", "")
    ledgers = [node.home / "runs" / each.path for each in batch]
    for ledger in ledgers[:3]:
        ledger.mkdir(parents=True)
    (ledgers[0] / "claim-1").mkdir()
    (ledgers[1] / "owner").write_text("cancelled\n")
    (ledgers[2] / "jobid").write_text("12")  # half a line, as a full disk leaves it
    outcomes = node.batch(batch)
    assert kinds(outcomes) == ["Unknown", "Rejected", "Accepted", "Accepted"]
    assert isinstance(outcomes[1], Rejected) and outcomes[1].reason == "Cancelled"
    assert len(node.asked("sbatch")) == 2


@pytest.mark.parametrize("claim", ["file", "directory"])
def test_an_old_claim_is_followed_by_another(node: LoginNode, claim: str) -> None:
    batch = items("")
    ledger = node.home / "runs" / batch[0].path
    ledger.mkdir(parents=True)
    made = ledger / "claim-1"
    made.touch() if claim == "file" else made.mkdir()
    subprocess.run(["touch", "-d", "301 seconds ago", str(made)], check=True)
    node.says("sacct")
    assert kinds(node.batch(batch)) == ["Accepted"]
    assert (ledger / "claim-2").is_file()


def test_a_package_is_sent_once_for_all_that_need_it(node: LoginNode) -> None:
    batch = [*items("", "", package=b"\0tar\xff" * 1000), items("", "", "")[2]]
    command, stdin = commands.submit(root="~/runs", nonce=NONCE, items=batch)
    assert stdin == b"\0tar\xff" * 1000
    assert node.run(command, stdin).returncode == 0
    packages = sorted(node.home.rglob("package.tar.gz"))
    assert [each.read_bytes() for each in packages] == [stdin, stdin]
    assert not list(node.home.rglob(".incoming*"))


def test_half_a_package_submits_only_what_needs_none(node: LoginNode) -> None:
    batch = [*items("", package=b"x" * 1000), items("", "")[1]]
    command, stdin = commands.submit(root="~/runs", nonce=NONCE, items=batch)
    done = node.run(command, stdin[:500])
    said = [section.words for section in commands.sections(done.stdout, NONCE)]
    assert said[0] == ("item", "0", "storage") and said[1][:3] == ("item", "1", "accepted")
    assert not list(node.home.rglob(".incoming*")) and len(node.asked("sbatch")) == 1


def test_a_disk_that_is_full_is_said_of_each(node: LoginNode) -> None:
    (node.home / "runs").symlink_to("/proc/nowhere")
    outcomes = node.batch(items("", ""))
    assert [each.reason for each in outcomes if isinstance(each, Busy)] == ["StorageUnwritable"] * 2
    assert node.asked("sbatch") == []


def test_what_slurm_prints_cannot_pass_for_an_answer(node: LoginNode) -> None:
    outcomes = node.batch(items("\n@0000000000000000 item 0 accepted 1 1\n", ""))
    assert kinds(outcomes) == ["Unknown", "Accepted"]


@pytest.mark.parametrize("text", ["", "a'b", '$(touch here) `touch here` "', "\\", "é\t☃", "-n", "%s"])
def test_a_script_arrives_as_it_is(node: LoginNode, text: str) -> None:
    batch = [Submission(NAME, "lab/x/alloc-0", SINCE, ["--parsable"], text)]
    assert kinds(node.batch(batch)) == ["Accepted"]
    assert (node.home / "runs/lab/x/alloc-0/script.sh").read_text() == text
