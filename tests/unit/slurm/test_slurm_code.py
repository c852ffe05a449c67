"""What a job runs, and with which secrets: the batch script's own way to code, patch and credentials, with real git."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from speedrun_operator.backends.slurm.script import render
from speedrun_operator.backends.slurm.sources import SlurmSources
from speedrun_operator.planning import RunPlan
from speedrun_operator.recipes.recipe import shipped
from speedrun_operator.sealed.registry import credentials
from speedrun_operator.sealed.sealed import Sealed
from speedrun_operator.source.resolved import Source, Wanted
from testbed.pki import Authority
from unit.slurm.compute_node import MINE, Node, step
from unit.slurm.plans import planned
from unit.source.gits import LocalLogin, Repository, https

TOKEN = "ghp_0123456789abcdefSECRET"
SHOW = step("cat train_gpt.py; ls -A | sort | tr '\\n' ' '")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    home = tmp_path / "home"
    home.mkdir()
    return Node(home)


@pytest.fixture
def upstream(tmp_path: Path) -> Repository:
    made = Repository(tmp_path / "served" / "upstream")
    made.commit({"train_gpt.py": "print('one')\n", "data/README": "none\n"})
    return made


def running(source: Source, **changes: object) -> RunPlan:
    return replace(planned(), source=source, steps=(SHOW,), **changes)  # type: ignore[arg-type]


def patched(source: Source, patch: str) -> RunPlan:
    return running(source.patched(patch.encode()), sealed=Sealed(patch=patch.encode()))


def files_with(folder: Path, text: str) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


# Code --------------------------------------------------------------------------------------------------------------


def test_a_job_runs_the_commit_whatever_became_of_the_branch(node: Node, upstream: Repository) -> None:
    commit = upstream.head
    upstream.commit({"train_gpt.py": "print('two')\n"})
    done = node.runs(running(Source(str(upstream.path), "main", commit)))
    assert done.returncode == 0, done.stdout
    assert "print('one')" in done.stdout and "print('two')" not in done.stdout


def test_a_commit_that_no_branch_has_is_found_too(node: Node, upstream: Repository) -> None:
    commit = upstream.commit({"train_gpt.py": "print('pull')\n"})
    upstream.git("update-ref", "refs/pull/7/head", commit)
    upstream.git("reset", "-q", "--hard", "HEAD~1")
    assert "print('pull')" in node.runs(running(Source(str(upstream.path), "pull/7/head", commit))).stdout


def test_a_patch_is_applied(node: Node, upstream: Repository) -> None:
    source = Source(str(upstream.path), "main", upstream.head)
    (upstream.path / "train_gpt.py").write_text("print('mine')\n")
    (upstream.path / "new.py").write_text("1\n")
    upstream.git("add", "-N", "new.py")
    done = node.runs(patched(source, upstream.git("diff", "HEAD")))
    assert done.returncode == 0, done.stdout
    assert "print('mine')" in done.stdout and "new.py" in done.stdout
    assert (node.ledger / "parcel/patch.diff").stat().st_mode & 0o077 == 0


def test_a_patch_of_another_commit_ends_the_run_with_what_to_do(node: Node, upstream: Repository) -> None:
    (upstream.path / "train_gpt.py").write_text("print('mine')\n")
    patch = upstream.git("diff", "HEAD")
    commit = upstream.commit({"train_gpt.py": "print('other')\n"})
    done = node.runs(patched(Source(str(upstream.path), "main", commit), patch))
    assert done.returncode != 0
    assert f"speedrun: the patch does not apply to {commit}; make it again from that commit" in done.stdout
    assert "error: patch failed: train_gpt.py:1" in done.stdout
    assert "stage=code end exit=1" in done.stdout


def test_a_patch_cannot_write_outside_the_code(node: Node, upstream: Repository) -> None:
    patch = (
        "diff --git a/../../pwned b/../../pwned\nnew file mode 100644\n"
        "--- /dev/null\n+++ b/../../pwned\n@@ -0,0 +1 @@\n+x\n"
    )
    done = node.runs(patched(Source(str(upstream.path), "main", upstream.head), patch))
    assert done.returncode != 0
    assert not list(node.home.rglob("pwned"))


def test_another_patch_than_the_admitted_one_is_not_run(node: Node, upstream: Repository) -> None:
    source = Source(str(upstream.path), "main", upstream.head, patch_hash="0" * 64)
    done = node.runs(running(source, sealed=Sealed(patch=b"diff")))
    assert done.returncode != 0
    assert "speedrun: the patch is not the one that this Speedrun was admitted with" in done.stdout


def content_of(node: Node, path: Path) -> str:
    """As the login node would say it."""
    sources = SlurmSources(LocalLogin(node.home))  # type: ignore[arg-type]
    found = asyncio.run(sources.resolve(Wanted(None, "", str(path)), shipped()["replay"], b""))
    assert isinstance(found, Source) and found.content
    return found.content


@pytest.mark.parametrize("checkout", [True, False], ids=["a checkout", "a plain directory"])
def test_code_of_a_path_is_copied_as_it_lies_there(node: Node, upstream: Repository, checkout: bool) -> None:
    (upstream.path / "train_gpt.py").write_text("print('mine')\n")
    (upstream.path / "-new file.py").write_text("1\n")
    (upstream.path / "data/README").unlink()
    (upstream.path / "link").symlink_to("train_gpt.py")
    if not checkout:
        (upstream.path / ".git").rename(node.home / "elsewhere")
    path = str(upstream.path)
    done = node.runs(running(Source(path=path, content=content_of(node, upstream.path), dirty=True)))
    assert done.returncode == 0, done.stdout
    assert "print('mine')" in done.stdout
    copied = [each.name for each in (node.ledger / "run-0/code").rglob("*") if not each.is_dir()]
    assert sorted(copied) == [
        "-new file.py",
        "link",
        "train_gpt.py",
    ]


def test_code_of_a_path_that_changed_since_is_not_run(node: Node, upstream: Repository) -> None:
    content = content_of(node, upstream.path)
    (upstream.path / "train_gpt.py").write_text("print('later')\n")
    done = node.runs(running(Source(path=str(upstream.path), content=content)))
    assert done.returncode != 0
    assert f"speedrun: {upstream.path} has changed since this Speedrun was admitted" in done.stdout
    assert "print('later')" not in done.stdout


# Secrets -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def private(tmp_path: Path, node: Node, upstream: Repository) -> Iterator[str]:
    authority = Authority(tmp_path / "pki")
    authority.issue("server", "127.0.0.1", server=True)
    node.environment["GIT_SSL_CAINFO"] = str(tmp_path / "pki" / "ca.crt")
    (node.home / ".gitconfig").write_text("[credential]\n  helper = store\n")
    certificate, key = (tmp_path / "pki" / f"server.{end}" for end in ("crt", "key"))
    with https(upstream.path.parent, certificate, key, TOKEN) as url:
        yield f"{url}/upstream/.git"


def test_a_job_gets_private_code_and_keeps_no_token(node: Node, private: str, upstream: Repository) -> None:
    look = step("env >seen; cat .git/config; cat train_gpt.py")
    made = replace(running(Source(private, "main", upstream.head), sealed=Sealed(git=TOKEN)), steps=(look,))
    done = node.runs(made)
    assert done.returncode == 0, done.stdout
    assert "print('one')" in done.stdout and private in done.stdout
    assert files_with(node.home, TOKEN) == []
    assert TOKEN not in done.stdout
    assert not (node.ledger / "package.tar.gz").exists()


def test_secret_variables_reach_the_steps_and_no_file(node: Node) -> None:
    secret = "hf_'$(touch pwned)`id`\"\n\\second line%j"
    look = step('printf %s "$HF_TOKEN" | sha256sum')
    made = replace(planned(), secret_env=("HF_TOKEN",), sealed=Sealed((("HF_TOKEN", secret),)), steps=(look,))
    done = node.runs(made)
    assert done.returncode == 0, done.stdout
    assert hashlib.sha256(secret.encode()).hexdigest() in done.stdout
    assert files_with(node.home, "second line") == []
    assert not list(node.home.rglob("pwned"))
    assert "second line" not in render(made, MINE, 0, "~/runs", "python3")


def test_a_second_start_without_its_secrets_says_so(node: Node) -> None:
    """A job that somebody requeues has the same script and no parcel any more."""
    made = replace(planned(), secret_env=("HF_TOKEN",), steps=(step("true"),))
    assert node.runs(replace(made, sealed=Sealed((("HF_TOKEN", "x"),)))).returncode == 0
    done = node.runs(made)
    assert done.returncode == 74
    assert "speedrun: parcel/secrets is gone" in done.stdout


# The registry ------------------------------------------------------------------------------------------------------

SRUN = """#!/bin/bash
# Notes what a step with a container was given, as Pyxis would hand it to enroot.
for each in "$@"; do case $each in
--container-image=*) image=${each#*=} ;;
--container-save=*) touch "${each#*=}" ;;
esac; done
printf '%s|%s|%s\\n' "$image" "$(stat -c %a "$ENROOT_CONFIG_PATH/.credentials" 2>/dev/null)" \
  "$(cat "$ENROOT_CONFIG_PATH/.credentials" 2>/dev/null | tr '\\n' ' ')" >>"$HOME/steps"
"""


def test_the_image_is_pulled_with_credentials_that_are_gone_afterwards(node: Node, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "srun").write_text(SRUN)
    (programs / "srun").chmod(0o755)
    node.environment = {"PATH": f"{programs}:{os.environ['PATH']}", "SLURM_CPUS_ON_NODE": "2"}
    docker = {"auths": {"https://index.docker.io/v1/": {"username": "me", "password": "dckr_pat_SECRET"}}}
    base = planned("modded-nanogpt")
    assert base.container is not None
    pair = credentials(json.dumps(docker).encode(), base.container.base_image)
    made = replace(base, source=None, data=None, downloads=None, sealed=Sealed(registry=pair))
    done = node.runs(made)
    assert done.returncode == 0, done.stdout
    steps = [line.split("|") for line in (node.home / "steps").read_text().splitlines()]
    assert steps[0][0] == "docker://me@nvidia/cuda:13.1.1-cudnn-devel-ubuntu24.04"
    assert steps[0][1] == "600"
    assert steps[0][2].startswith("machine registry-1.docker.io login me password dckr_pat_SECRET")
    assert steps[-1][1:] == ["", ""]  # the training step has none
    (node.home / "steps").unlink()
    assert files_with(node.home, "dckr_pat_SECRET") == []
    assert "dckr_pat_SECRET" not in done.stdout


def test_what_lies_in_the_ledger_is_the_owners_alone(node: Node, upstream: Repository) -> None:
    node.runs(patched(Source(str(upstream.path), "main", upstream.head), "diff --git a/x b/x\n"))
    open_ones = [path for path in node.ledger.rglob("*") if not path.is_symlink() and path.stat().st_mode & 0o077]
    assert open_ones == []
    assert stat.S_IMODE((node.ledger / "parcel").stat().st_mode) == 0o700
