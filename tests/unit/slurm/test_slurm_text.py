"""Every bash text that leaves the operator over SSH: whole, well-formed, and clean by shellcheck."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from speedrun_operator.api.names import Identity
from speedrun_operator.api.spec import Spec
from speedrun_operator.backends.slurm import commands, prepare, script
from speedrun_operator.planning import RunPlan, Site, plan
from speedrun_operator.preparation.needs import Kind, Need, needs
from speedrun_operator.recipes.recipe import shipped
from unit.slurm.login_node import NAME, NONCE, PATH, PREFIX, SINCE

INPUTS = {"files": "f", "mentions": "e"}


def planned(recipe: str, mode: str) -> RunPlan:
    made = plan(Spec.model_validate({"recipe": {"name": recipe}, "slurm": {"prepare": mode}}), shipped(), Site())
    assert isinstance(made, RunPlan)
    return made


def job(recipe: str, mode: str) -> Callable[[], str]:
    def render() -> str:
        made = planned(recipe, mode)
        return script.render(made.for_runs([(0, "A")]), Identity("lab", "mine", "u-1"), 0, "~/a b", "~/venv/bin/python")

    return render


def preparing(kind: Kind) -> Callable[[], str]:
    def render() -> str:
        made = planned("modded-nanogpt", "Separate")
        need = next(each for each in needs(made, INPUTS) if each.kind is kind)
        return prepare.render(made, need, "~/a b", "~/venv/bin/python")

    return render


TEXTS: dict[str, Callable[[], str]] = {
    "submit": lambda: commands.submit(
        root="~/a b",
        nonce=NONCE,
        items=[commands.Submission(NAME, PATH, SINCE, ["--comment=a b'"], "#!/bin/bash\necho 'a'\n", b"x")],
    )[0],
    "prepare": lambda: commands.prepare(
        root="~/a b",
        nonce=NONCE,
        need=Need(Kind.DATA, "0" * 16),
        prefix="sp-c1-0-",
        after=-1,
        since=SINCE,
        arguments=["-a"],
        script="#!/bin/bash\necho 'a'\n",
    ),
    "poll": lambda: commands.poll(root="~/a b", prefix=PREFIX, nonce=NONCE),
    "cancel": lambda: commands.cancel(root="~/a b", prefix=PREFIX, nonce=NONCE),
}
TEXTS |= {f"{mode} job of {recipe}": job(recipe, mode) for recipe in shipped() for mode in ("Separate", "Inline")}
TEXTS |= {f"job that prepares {kind}": preparing(kind) for kind in Kind}
FILLED_IN = (
    "CLAIM_SECONDS|BATCH_SECONDS|ACCOUNTING_OFF|SCRIPT|PACKAGE|LOG|UNKNOWN|REJECTED|OVERLOADED|BUSY|SQUEUE_FORMAT|SACCT_FIELDS|SACCT_NAMES|"
    "PREFIX|LOG_BYTES|POLL_BYTES|SRUN_RESOURCES|PREPARING|MANIFEST|LEASE_SECONDS|BEAT_SECONDS|LOOK_SECONDS|WATCH_SECONDS|"
    "MISSING_EXIT|SHARD_MAGIC|SHARD_VERSION|SHARD_HEADER|CACHE|FETCH|VARIABLES|DIRECTORIES"
)


@pytest.mark.parametrize("name", TEXTS)
def test_bash_reads_it(name: str) -> None:
    text = TEXTS[name]()
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\r" not in text and "\0" not in text


@pytest.mark.parametrize("name", TEXTS)
def test_no_word_is_left_to_fill_in(name: str) -> None:
    assert not re.findall(rf"\b({FILLED_IN})\b", TEXTS[name]())


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="needs shellcheck (package shellcheck)")
@pytest.mark.parametrize("name", TEXTS)
def test_shellcheck_warns_of_nothing(name: str, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text(TEXTS[name]())
    # SC2034: a job's script says of each kind of cache entry what it is made of, and makes one of them.
    command = ["shellcheck", "--shell=bash", "--severity=warning", "--exclude=SC2034", "--format=gcc", str(text)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("logs", "bytes_"),
    [(0, 524288), (1, 524288), (8, 524288), (9, 466033), (64, 65536), (65, 65536), (5000, 65536)],
)
def test_few_logs_are_read_in_larger_pieces(logs: int, bytes_: int) -> None:
    assert commands.share(logs) == bytes_
