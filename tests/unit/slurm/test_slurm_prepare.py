"""The command that asks for a cache entry: which attempt's job it takes, or makes. Real bash, squeue played back."""

from __future__ import annotations

from pathlib import Path

import pytest

from speedrun_operator.backends.slurm import commands
from speedrun_operator.preparation.needs import Kind, Need
from unit.slurm.login_node import NONCE, SINCE, LoginNode

NEED = Need(Kind.DATA, "0" * 16)
JOBS_PREFIX = "sp-c1c1c1c1-0000000000000000-"
# Jobs are lines `NAME ID STATE` of ~/jobs; without `-t all` those that ended are left out, as squeue does.
SQUEUE = """#!/bin/bash
[ ! -e ~/down ] || exit 1
while [ $# -gt 0 ]; do
  case $1 in -t) all=1; shift ;; -n) names=,$2, ; shift ;; -o) format=$2; shift ;; esac
  shift
done
while read -r name id state; do
  [[ $names = *,$name,* ]] || continue
  case $all$state in PENDING | RUNNING | 1*) ;; *) continue ;; esac
  case $format in %i) echo "$id" ;; *) echo "$name $id 1782900000 $state None" ;; esac
done <~/jobs
"""


@pytest.fixture
def node(tmp_path: Path) -> LoginNode:
    made = LoginNode(tmp_path)
    (made.programs / "squeue").write_text(SQUEUE)
    (made.home / "jobs").touch()
    made.says("sbatch", "77\n")
    made.says("df", "")
    made.says("sacct", "")
    return made


def ask(node: LoginNode, after: int = -1) -> list[tuple[str, ...]]:
    """What the command tells, each with its words."""
    command = commands.prepare(
        root="~/runs", nonce=NONCE, need=NEED, prefix=JOBS_PREFIX, after=after, since=SINCE,
        arguments=["--parsable"], script="#!/bin/bash\n",
    )  # fmt: skip
    return [section.words for section in commands.sections(node.run(command).stdout, NONCE)]


def jobs(node: LoginNode, *states: str) -> None:
    """A job an attempt, from 0, numbered from 40."""
    rows = (f"{JOBS_PREFIX}{attempt} {40 + attempt} {state}\n" for attempt, state in enumerate(states))
    (node.home / "jobs").write_text("".join(rows))


@pytest.mark.parametrize(
    ("states", "attempt", "job"),
    [
        pytest.param((), 0, "77", id="nothing is known: the first attempt"),
        pytest.param(("PENDING",), 0, "40", id="a job waits whose ledger is gone: it is that attempt's"),
        pytest.param(("RUNNING",), 0, "40", id="a job runs whose ledger is gone"),
        pytest.param(("COMPLETED",), 1, "77", id="a job ended, and somebody removed the cache with its ledger"),
        pytest.param(("FAILED",), 1, "77", id="a job failed, and somebody removed its ledger"),
        pytest.param(("COMPLETED", "FAILED", "CANCELLED"), 3, "77", id="several ended"),
        pytest.param(("COMPLETED", "RUNNING"), 1, "41", id="one ended, the next one runs"),
    ],
)
def test_a_job_that_ended_without_a_ledger_is_not_taken_for_a_new_attempts(
    node: LoginNode, states: tuple[str, ...], attempt: int, job: str
) -> None:
    jobs(node, *states)
    told = ask(node)
    assert told[0] == ("attempt", str(attempt))
    assert told[1][:4] == ("item", "0", "accepted", job)
    [name] = [path.name for path in (node.home / "runs" / ".cache" / "jobs" / NEED.key).iterdir()]
    assert name == f"try-{attempt}"
    assert len(node.asked("sbatch")) == (job == "77")


def test_a_job_that_has_its_ledger_is_the_attempts_until_it_is_known_to_have_ended(node: LoginNode) -> None:
    assert ask(node)[1][:4] == ("item", "0", "accepted", "77")
    (node.home / "jobs").write_text(f"{JOBS_PREFIX}0 77 RUNNING\n")
    assert ask(node)[0] == ("attempt", "0")
    (node.home / "jobs").write_text(f"{JOBS_PREFIX}0 77 COMPLETED\n")
    assert ask(node)[0] == ("attempt", "1")


def test_nothing_is_submitted_while_slurm_does_not_say(node: LoginNode) -> None:
    (node.home / "down").touch()
    assert ask(node) == [("item", "0", "unasked")]
    assert node.asked("sbatch") == []
