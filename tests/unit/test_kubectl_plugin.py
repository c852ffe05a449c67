"""`kubectl speedrun run`: what it takes for the patch of a checkout (the real git), and what it says before it acts."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from speedrun_operator.checkout import Fault, local_patch
from speedrun_operator.cli_kubectl import main
from unit.source.gits import Repository

SPEEDRUN = """\
apiVersion: speedrun.dev/v1alpha1
kind: Speedrun
metadata: {name: mine}
spec: {recipe: {name: modded-nanogpt}}
"""
URL = "https://github.com/me/modded-nanogpt.git"


@pytest.fixture
def mine(tmp_path: Path) -> Repository:
    """A checkout whose branch follows a remote, with one commit there."""
    made = Repository(tmp_path / "mine")
    made.commit({"train_gpt.py": "one\n", "other.py": "1\n"})
    made.git("remote", "add", "origin", URL)
    made.git("update-ref", "refs/remotes/origin/main", "HEAD")
    made.git("config", "branch.main.remote", "origin")
    made.git("config", "branch.main.merge", "refs/heads/main")
    return made


def applied(base: Repository, commit: str, patch: bytes, folder: Path) -> Path:
    """The code at `commit` with the patch, as a job makes it."""
    base.git("worktree", "add", "-q", "--detach", str(folder), commit)
    subprocess.run(["git", "-C", str(folder), "apply"], input=patch, check=True)
    return folder


def test_the_patch_is_all_that_the_remote_does_not_have(mine: Repository, tmp_path: Path) -> None:
    base = mine.head
    mine.commit({"train_gpt.py": "two\n"})  # not pushed
    (mine.path / "other.py").write_bytes(b"\xff\0binary")
    (mine.path / "new.py").write_text("new\n")
    (mine.path / "left.py").write_text("left\n")
    mine.git("add", "-N", "new.py")
    patch = local_patch(mine.path, {})
    assert (patch.repository, patch.base, patch.untracked) == (URL, base, ("left.py",))
    assert patch.summary.startswith("3 files changed")
    made = applied(mine, base, patch.content, tmp_path / "job")
    assert (made / "train_gpt.py").read_text() == "two\n"
    assert (made / "other.py").read_bytes() == b"\xff\0binary"
    assert (made / "new.py").read_text() == "new\n"


@pytest.mark.parametrize("setting", ["diff.noprefix", "diff.mnemonicPrefix", "diff.relative"])
def test_the_users_own_settings_do_not_spoil_the_patch(mine: Repository, tmp_path: Path, setting: str) -> None:
    (mine.path / "sub").mkdir()
    (mine.path / "train_gpt.py").write_text("two\n")
    mine.git("config", setting, "true")
    patch = local_patch(mine.path / "sub", {})
    assert (applied(mine, mine.head, patch.content, tmp_path / "job") / "train_gpt.py").read_text() == "two\n"


@pytest.mark.parametrize(
    ("remote", "source", "repository"),
    [
        ("git@github.com:me/x.git", {}, "https://github.com/me/x.git"),
        ("ssh://git@gitlab.com/me/x.git", {}, "https://gitlab.com/me/x.git"),
        ("git@github.com:me/x.git", {"secretRef": {"name": "a", "key": "b"}}, "git@github.com:me/x.git"),
        ("git@git.example.com:me/x.git", {}, "git@git.example.com:me/x.git"),
        ("https://me:s3cret@github.com/me/x.git", {}, "https://github.com/me/x.git"),
        (URL, {"repository": "https://a/b"}, "https://a/b"),
    ],
)
def test_which_repository_the_cluster_is_told(
    mine: Repository, remote: str, source: dict[str, object], repository: str
) -> None:
    mine.git("remote", "set-url", "origin", remote)
    (mine.path / "train_gpt.py").write_text("two\n")
    assert local_patch(mine.path, source).repository == repository


def test_a_revision_of_the_file_is_what_the_patch_applies_to(mine: Repository) -> None:
    first = mine.head
    mine.commit({"train_gpt.py": "two\n"})
    mine.git("update-ref", "refs/remotes/origin/main", "HEAD")
    assert local_patch(mine.path, {"revision": first[:10]}).base == first
    with pytest.raises(
        Fault, match=r"spec\.recipe\.source\.revision: this checkout does not have gone; fetch it first"
    ):
        local_patch(mine.path, {"revision": "gone"})


def test_without_a_difference_there_is_nothing_to_run(mine: Repository) -> None:
    with pytest.raises(Fault, match=r"nothing differs from .*: leave --diff out"):
        local_patch(mine.path, {})


def test_a_commit_that_no_remote_has_must_be_pushed(mine: Repository) -> None:
    mine.git("checkout", "-q", "-b", "alone")
    mine.commit({"train_gpt.py": "two\n"})
    with pytest.raises(Fault, match=r"no remote has .*: push it"):
        local_patch(mine.path, {})


def test_a_patch_that_no_configmap_takes_must_be_pushed(mine: Repository) -> None:
    (mine.path / "train_gpt.py").write_text("".join(f"line {number}\n" for number in range(100_000)))
    with pytest.raises(Fault, match="push a branch and name it"):
        local_patch(mine.path, {})


@pytest.mark.parametrize(
    ("text", "arguments", "says"),
    [
        ("a: [", [], "while parsing"),
        ("", [], "must hold one Speedrun, not 0 documents"),
        (f"{SPEEDRUN}---\n{SPEEDRUN}", [], "must hold one Speedrun, not 2 documents"),
        ("kind: Pod\napiVersion: v1\n", [], "is no Speedrun: apiVersion must be speedrun.dev/v1alpha1"),
        (SPEEDRUN.replace("mine", "'--all'"), [], "metadata.name: must be a DNS name"),
        (SPEEDRUN.replace("recipe: {", "recepi: {"), [], "spec.recipe: Field required"),
        (SPEEDRUN, ["--diff", "--checkout", "/"], "git rev-parse: fatal: not a git repository"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_created(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, arguments: list[str], says: str
) -> None:
    file = tmp_path / "speedrun.yaml"
    file.write_text(text)
    assert main(["run", "-f", str(file), *arguments]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("kubectl speedrun: ") and says in said.err


def test_without_kubectl_it_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "speedrun.yaml").write_text(SPEEDRUN)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["run", "-f", str(tmp_path / "speedrun.yaml")]) == 1
    assert "there is no kubectl in PATH" in capsys.readouterr().err


def test_help_shows_how_it_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", "--help"])
    assert ended.value.code == 0
    assert "kubectl speedrun run -f speedrun.yaml --diff" in capsys.readouterr().out
