"""How a pod comes by a repository's code: real git, and the containers' own bash."""

from __future__ import annotations

import hashlib
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from speedrun_operator.api.spec import Spec
from speedrun_operator.diagnosis import rule_of, sign_of
from speedrun_operator.planning import Refusal, RunPlan, Site, plan
from speedrun_operator.recipes.recipe import Stage, Step, shipped
from testbed.pki import Authority
from unit.pods.containers import Containers
from unit.pods.test_pod_manifest import SITE, containers, made
from unit.source.gits import Repository, https

STEP = Step(name="train", stage=Stage.TRAIN, run="git rev-parse HEAD; cat train_gpt.py")
TOKEN = "ghp_0123SECRETwords"


@pytest.fixture
def pod(tmp_path: Path) -> Containers:
    return Containers(tmp_path / "pod-place")


@pytest.fixture
def fork(tmp_path: Path) -> Repository:
    made = Repository(tmp_path / "fork")
    made.commit({"train_gpt.py": "first\n", "requirements.txt": ""})
    return made


def of(source: dict[str, Any], runs: int = 1, **changes: Any) -> RunPlan:
    """modded-nanogpt from `source`, without image, data and downloads."""
    bare = {"container": None, "data": None, "downloads": None, "steps": (STEP,), **changes}
    spec = {"recipe": {"name": "modded-nanogpt", "source": source}, "backend": "Pods", "gpus": {"count": 1}}
    full = plan(Spec.model_validate({**spec, "runs": runs}), shipped(), SITE)
    assert isinstance(full, RunPlan), full
    return replace(full, **bare).for_runs([(number, "A") for number in range(runs)])


def local(fork: Repository, made: RunPlan) -> RunPlan:
    """`made` with its code from a repository of this machine."""
    assert made.source is not None
    return replace(made, source=replace(made.source, repository=str(fork.path)))


def test_a_branch_is_looked_up_once_and_every_run_gets_that_commit(pod: Containers, fork: Repository) -> None:
    commit = fork.head
    assert pod.run(local(fork, of({"revision": "main"}, runs=2))) == 0, pod.log
    assert pod.log.count(f"\n{commit}\nfirst\n") == 2
    assert dict(pod.read().code)["commit"] == commit
    assert dict(pod.read().code)["layout"] == "single-file"
    assert [each.stages[0].name for each in pod.read().runs] == ["code", "code"]
    fork.commit({"train_gpt.py": "second\n"})
    known = local(fork, of({"revision": "main"}))
    known = replace(known, source=replace(known.source, commit=commit))  # type: ignore[type-var]
    assert pod.run(known, allocation=1) == 0, pod.log  # a later pod is told the commit
    assert f"\n{commit}\nfirst\n" in pod.log


@pytest.mark.parametrize(
    ("revision", "branches", "says"),
    [("nope", (), "no branch, tag or commit nope"), ("both", ("both",), "both is a branch and a tag")],
)
def test_a_revision_that_is_not_one_commit_is_told(
    pod: Containers, fork: Repository, revision: str, branches: tuple[str, ...], says: str
) -> None:
    for each in branches:
        fork.git("tag", each)
        fork.commit({"train_gpt.py": "later\n"})
        fork.git("branch", each)
    assert pod.run(local(fork, of({"revision": revision}))) == 1
    (line,) = [each for each in pod.log.splitlines() if "UnknownRevision" in each]
    assert says in line and sign_of(line) == "RevisionMissing"


def test_a_patch_goes_on_top_and_another_one_does_not(pod: Containers, fork: Repository) -> None:
    (fork.path / "train_gpt.py").write_text("patched\n")
    patch = fork.git("diff", "HEAD").encode()
    fork.git("checkout", "-q", "train_gpt.py")
    (pod.place / "patch.diff").write_bytes(patch)
    wanted = local(fork, of({"revision": "main", "patch": {"configMapRef": {"name": "p", "key": "diff"}}}))
    assert wanted.source is not None
    patched = replace(wanted, source=wanted.source.patched(patch))
    assert pod.run(patched) == 0, pod.log
    assert f"\n{fork.head}\npatched\n" in pod.log
    other = replace(wanted, source=replace(wanted.source, patch_hash=hashlib.sha256(b"else").hexdigest()))
    assert pod.run(other, allocation=1) == 1
    assert "the patch is not the one that this Speedrun was admitted with" in pod.log


def test_code_of_another_project_or_for_other_gpus_is_refused(pod: Containers, fork: Repository) -> None:
    fork.git("rm", "-q", "train_gpt.py")
    fork.commit({"else.py": ""})
    assert pod.run(local(fork, of({"revision": "main"}))) == 1
    (line,) = [each for each in pod.log.splitlines() if "UnsupportedSource" in each]
    rule = rule_of(sign_of(line))
    assert rule is not None and "spec.recipe.source" in rule.message
    fork.commit({"track_1_short/__init__.py": ""})
    assert pod.run(local(fork, of({"revision": "main"})), allocation=1) == 1
    (line,) = [each for each in pod.log.splitlines() if "UnsupportedHardware" in each]
    assert "runs on 8 GPUs, not on 1" in line and sign_of(line) == "WorldSize"


def test_a_private_repository_takes_its_token_from_a_secret_and_shows_it_nowhere(
    pod: Containers, fork: Repository, tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "pki")
    authority.issue("server", "127.0.0.1", server=True)
    certificate, key = (tmp_path / "pki" / f"server.{end}" for end in ("crt", "key"))
    (pod.place / "home" / ".gitconfig").write_text(f"[http]\n\tsslCAInfo = {tmp_path / 'pki/ca.crt'}\n")
    source = {"repository": "https://127.0.0.1/fork", "revision": "main", "secretRef": {"name": "git", "key": "token"}}
    with https(fork.path.parent, certificate, key, TOKEN) as served:
        wanted = of(source)
        assert wanted.source is not None
        wanted = replace(wanted, source=replace(wanted.source, repository=f"{served}/fork/.git"))
        assert pod.run(wanted, secret=TOKEN) == 0, pod.log
        assert pod.run(replace(wanted, git_ref=None), allocation=1) == 1
    found = subprocess.run(["grep", "-rl", TOKEN, str(pod.place)], capture_output=True, text=True).stdout
    assert (TOKEN in pod.log, found) == (False, "")


def test_only_the_container_that_fetches_the_code_gets_secret_and_patch() -> None:
    source = {
        "repository": "https://example.org/me/fork.git",
        "patch": {"configMapRef": {"name": "mine", "key": "diff"}},
        "secretRef": {"name": "git", "key": "token"},
    }
    body = made(of(source))
    for each in containers(body):
        given = {one["name"]: one.get("valueFrom", {}).get("secretKeyRef") for one in each["env"]}
        code = each["name"] == "code"
        assert (given.get("SPEEDRUN_GIT_SECRET_GIVEN") == {"name": "git", "key": "token"}) is code
        assert ("patch" in [one["name"] for one in each["volumeMounts"]]) is code
    (volume,) = [each for each in body["spec"]["volumes"] if each["name"] == "patch"]
    assert volume["configMap"] == {"name": "mine", "items": [{"key": "diff", "path": "patch.diff"}]}


@pytest.mark.parametrize("source", [{"path": "/shared/me"}, {"repository": "/shared/me.git"}])
def test_what_a_pod_cannot_see_is_refused_in_words(source: dict[str, str]) -> None:
    spec = Spec.model_validate({"recipe": {"name": "modded-nanogpt", "source": source}, "backend": "Pods"})
    refused = plan(spec, shipped(), Site(pod_image="x"))
    assert isinstance(refused, Refusal)
    assert refused.message.startswith("spec.recipe.source.") and "use backend Slurm" in refused.message
