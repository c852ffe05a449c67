"""Every bash text that leaves the operator: whole, well-formed, and clean by shellcheck where it is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from speedrun_operator.api.names import Identity
from speedrun_operator.api.spec import Spec
from speedrun_operator.backends.slurm import commands, script
from speedrun_operator.planning import RunPlan, Site, plan
from speedrun_operator.recipes.recipe import shipped
from unit.slurm.login_node import NAME, NONCE, PATH, PREFIX, SINCE


def job(recipe: str) -> Callable[[], str]:
    def render() -> str:
        made = plan(Spec.model_validate({"recipe": {"name": recipe}}), shipped(), Site())
        assert isinstance(made, RunPlan)
        return script.render(made.for_runs([(0, "A")]), Identity("lab", "mine", "u-1"), 0, "~/a b", "~/venv/bin/python")

    return render


TEXTS: dict[str, Callable[[], str]] = {
    "submit": lambda: commands.submit(
        root="~/a b",
        nonce=NONCE,
        items=[commands.Submission(NAME, PATH, SINCE, ["--comment=a b'"], "#!/bin/bash\necho 'a'\n", b"x")],
    )[0],
    "poll": lambda: commands.poll(root="~/a b", prefix=PREFIX, nonce=NONCE),
    "cancel": lambda: commands.cancel(root="~/a b", prefix=PREFIX, nonce=NONCE),
} | {f"job of {recipe}": job(recipe) for recipe in shipped()}
FILLED_IN = (
    "CLAIM_SECONDS|BATCH_SECONDS|ACCOUNTING_OFF|SCRIPT|PACKAGE|LOG|UNKNOWN|REJECTED|OVERLOADED|BUSY|SQUEUE_FORMAT|SACCT_FIELDS|SACCT_NAMES|"
    "PREFIX|LOG_BYTES|POLL_BYTES|SRUN_RESOURCES"
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
    command = ["shellcheck", "--shell=bash", "--severity=warning", "--format=gcc", str(text)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("logs", "bytes_"),
    [(0, 524288), (1, 524288), (8, 524288), (9, 466033), (64, 65536), (65, 65536), (5000, 65536)],
)
def test_few_logs_are_read_in_larger_pieces(logs: int, bytes_: int) -> None:
    assert commands.share(logs) == bytes_
