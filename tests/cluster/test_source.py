"""A fork, a patch and secrets on the real bed: what runs is what was resolved, and no secret is seen by anybody.

Real: API server, Slurm, sshd, git, and a git server with a certificate and a token. Stand-ins: in the container
apt-get, pip and torchrun (testbed.pyxis).
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import speedrun_operator
from cluster.speedruns import Speedruns, condition, slow
from cluster.test_slurm_bed import SINFO, Shell
from testbed import users
from testbed.facts import Facts
from testbed.kubectl import Kubectl
from testbed.operator import Operator
from testbed.part import Place
from testbed.pki import Authority
from testbed.processes import wait_for
from testbed.slurm import Slurm
from unit.source.gits import Repository, https

HOME = Path("/home") / users.NAMES[0]
ROOT = HOME / "source-runs"
HF_TOKEN, GIT_TOKEN, HUB_TOKEN = "hf_cluster0123SECRET", "ghp_cluster4567SECRET", "dckr_pat_cluster89SECRET"
NOWHERE = {"partition": "nowhere"}
SECRETS = (HF_TOKEN, GIT_TOKEN, HUB_TOKEN)
FILES = {
    "requirements.txt": "numpy\ntqdm\ntorch\nhuggingface-hub\n",
    "train_gpt.py": "import torch\n",
    "data/cached_fineweb10B.py": "import torch\n",
    "track_1_short/__init__.py": "",
}


@pytest.fixture(scope="module")
def shell(bed: Facts) -> Shell:
    return Shell(Path(bed["ssh_config"]))


@pytest.fixture(scope="module")
def slurm(bed: Facts, place: Place, shell: Shell) -> Slurm:
    wait_for("both nodes to be idle", lambda: shell("sinfo -o '%P %D %t %G %f'") == SINFO, timeout=30)
    return Slurm(place)


@pytest.fixture(scope="module")
def operator(bed: Facts, place: Place, shell: Shell) -> Iterator[Operator]:
    operator = Operator(
        place, bed, {"SPEEDRUN_SLURM__ROOT": str(ROOT), "SPEEDRUN_LOG_LEVEL": "debug"}, name="operator-source"
    )
    operator.install()
    operator.start()
    yield operator
    operator.stop()
    shell(f"rm -rf {ROOT}")


@pytest.fixture
def runs(operator: Operator, kubectl: Kubectl, namespace: str) -> Speedruns:
    return Speedruns(kubectl, namespace)


@pytest.fixture
def fork(tmp_path: Path) -> Repository:
    made = Repository(tmp_path / "served" / "fork")
    made.commit(FILES)
    made.git("branch", "mine")
    return made


@pytest.fixture
def url(tmp_path: Path, fork: Repository, shell: Shell) -> Iterator[str]:
    """The fork behind a token; the login user's own git would store what it is told."""
    authority = Authority(tmp_path / "pki")
    authority.issue("server", "127.0.0.1", server=True)
    shell("cat >ca.crt", (tmp_path / "pki/ca.crt").read_text())
    shell("git config --global http.sslCAInfo ~/ca.crt; git config --global credential.helper store")
    certificate, key = (tmp_path / "pki" / f"server.{end}" for end in ("crt", "key"))
    with https(fork.path.parent, certificate, key, GIT_TOKEN) as served:
        yield f"{served}/fork/.git"
    shell("rm -f ca.crt .gitconfig .git-credentials")


def modded(name: str, source: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "speedrun.dev/v1alpha1",
        "kind": "Speedrun",
        "metadata": {"name": name},
        "spec": {"recipe": {"name": "modded-nanogpt", "source": source}, **spec},
    }


def put(runs: Speedruns, kind: str, name: str, **fields: Any) -> None:
    runs.apply({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, **fields})


def refusal(runs: Speedruns, name: str, reason: str) -> str:
    status = runs.wait(name, reason, lambda each: condition(each, "Admitted").get("reason") == reason, 40)
    assert condition(status, "Admitted")["status"] == "False"
    return f"{status['phase']}: {condition(status, 'Admitted')['message']}"


class Watch:
    """Everything that a curious neighbour can see of the cluster's processes and jobs while it lasts."""

    def __init__(self, slurm: Slurm) -> None:
        self.seen: set[str] = set()
        self._slurm = slurm
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.02):
            self.seen |= {*subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout.splitlines()}
            self.seen.add(self._slurm.command("scontrol", "show", "job").stdout)


def test_a_private_fork_with_a_patch_runs_and_no_secret_is_seen(
    runs: Speedruns, slurm: Slurm, operator: Operator, fork: Repository, url: str, shell: Shell
) -> None:
    commit = fork.head
    (fork.path / "train_gpt.py").write_text("import torch  # patched\n")
    patch = fork.git("diff", "HEAD")
    fork.git("checkout", "-q", "train_gpt.py")
    wanted = modded(
        "private",
        {
            "repository": url,
            "revision": "mine",
            "secretRef": {"name": "github", "key": "token"},
            "patch": {"configMapRef": {"name": "patch", "key": "diff"}},
        },
        env=[{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}}],
        slurm={"registrySecretRef": {"name": "hub"}},
    )
    with Watch(slurm) as watch:
        runs.apply(wanted)
        # What is missing is named, and waited for without another edit.
        assert "spec.recipe.source.patch.configMapRef: namespace" in refusal(runs, "private", "PatchMissing")
        put(runs, "ConfigMap", "patch", data={"diff": patch})
        assert "has no Secret github; create it with a key token" in refusal(runs, "private", "SecretMissing")
        put(runs, "Secret", "github", stringData={"token": "ghp_wrong"})
        assert "Authentication failed" in refusal(runs, "private", "SourceRefused")
        put(runs, "Secret", "github", stringData={"token": GIT_TOKEN})
        put(runs, "Secret", "hf", stringData={"other": HF_TOKEN})
        said = refusal(runs, "private", "SecretKeyMissing")
        assert said.startswith("Pending: spec.env[0].valueFrom.secretKeyRef: Secret hf has no key token; it has: other")
        # By now the code is known, and what becomes of the branch no longer matters.
        assert runs.status("private")["plan"]["source"]["commit"] == commit
        fork.git("checkout", "-q", "mine")
        fork.commit({"train_gpt.py": "import torch  # moved on\n"})
        docker = {"auths": {"https://index.docker.io/v1/": {"username": "me", "password": HUB_TOKEN}}}
        put(
            runs,
            "Secret",
            "hub",
            type="kubernetes.io/dockerconfigjson",
            stringData={".dockerconfigjson": json.dumps(docker)},
        )
        put(runs, "Secret", "hf", stringData={"token": HF_TOKEN})
        status = runs.wait_finished("private", timeout=90)
    log = Path(status["logPath"]).read_text()
    assert (status["phase"], status["reason"]) == ("Succeeded", "TargetReached"), log

    source = status["plan"]["source"]
    assert (status["plan"]["commit"], source["revision"], source["layout"]) == (commit, "mine", "package")
    ledger = Path(status["logPath"]).parent
    assert (ledger / "run-0/code/train_gpt.py").read_text() == "import torch  # patched\n"
    [maker] = [each["jobId"] for each in status["preparing"] if each["stage"] == "image"]
    events = slurm.pyxis.events(int(maker))
    images = [event["options"]["container-image"] for event in events if event["event"] == "step"]
    assert images[0] == "docker://me@nvidia/cuda:13.1.1-cudnn-devel-ubuntu24.04"

    told = [json.dumps(runs.get("private")), str(runs.events("private")), operator.log.read_text(), log, *watch.seen]
    told.append(slurm.command("sacct", "-j", f"{status['job']},{maker}", "-o", "ALL", "-p").stdout)
    assert any("torchrun" in text for text in watch.seen), "the processes of the run were looked at"
    for secret in SECRETS:
        encoded = base64.b64encode(secret.encode()).decode()
        assert not [text[:200] for text in told if secret in text or encoded in text]
        lying = subprocess.run(["grep", "-rlF", secret, str(HOME)], capture_output=True, text=True)
        assert lying.stdout == "", lying.stdout
    modes = [path for path in ledger.rglob("*") if not path.is_symlink() and path.stat().st_mode & 0o077]
    assert modes == []


def test_a_secret_variable_is_in_the_jobs_environment_and_its_file_is_gone(runs: Speedruns, slurm: Slurm) -> None:
    put(runs, "Secret", "hf", stringData={"token": HF_TOKEN})
    variable = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}}
    runs.apply({**slow("token", 30), "spec": {**slow("token", 30)["spec"], "env": [variable]}})
    status = runs.wait_phase("token", "Training")
    ledger = Path(status["logPath"]).parent
    inside = f"HF_TOKEN={HF_TOKEN}".encode()
    having = [
        path
        for path in Path("/proc").glob("[0-9]*/environ")
        if inside in _read(path) and b"replay.sh" in _read(path.with_name("cmdline"))
    ]
    assert having, "the step has it"
    assert not (ledger / "package.tar.gz").exists()
    assert not (ledger / "parcel/secrets").exists()
    runs.kubectl("delete", "speedrun", "token", "-n", runs.namespace)


def test_a_submission_that_is_refused_tells_no_secret(runs: Speedruns, operator: Operator) -> None:
    """BR-108: the operator logs at level debug what it could not submit."""
    put(runs, "Secret", "hf", stringData={"token": HF_TOKEN})
    variable = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}}
    runs.apply({**slow("refused", 30), "spec": {**slow("refused", 30)["spec"], "env": [variable], "slurm": NOWHERE}})
    status = runs.wait_finished("refused", timeout=60)
    assert status["phase"] == "Failed"
    told = [json.dumps(runs.get("refused")), str(runs.events("refused")), operator.log.read_text()]
    assert "nowhere" in told[0] and "lab/refused" in told[2].replace(runs.namespace, "lab")
    assert not [text[:200] for text in told if HF_TOKEN in text]
    assert subprocess.run(["grep", "-rlF", HF_TOKEN, str(HOME)], capture_output=True, text=True).stdout == ""


def test_a_job_that_never_starts_leaves_no_secret_behind(runs: Speedruns, slurm: Slurm) -> None:
    put(runs, "Secret", "hf", stringData={"token": HF_TOKEN})
    variable = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}}
    nodes = "nodename=slurm-h100-[0-1]"
    slurm.command("scontrol", "update", nodes, "state=drain", "reason=test")
    try:
        runs.apply({**slow("held", 30), "spec": {**slow("held", 30)["spec"], "env": [variable]}})
        ledger = Path(runs.wait_phase("held", "Queued")["logPath"]).parent
        assert (ledger / "package.tar.gz").stat().st_mode & 0o077 == 0
        runs.kubectl("delete", "speedrun", "held", "-n", runs.namespace)
        assert not (ledger / "package.tar.gz").exists()
    finally:
        slurm.command("scontrol", "update", nodes, "state=resume")


@pytest.mark.parametrize(
    ("source", "spec", "reason", "says"),
    [
        ({"revision": "mian"}, {}, "UnknownRevision", "Failed: spec.recipe.source.revision: "),
        ({"repository": "/nowhere/x"}, {}, "SourceNotFound", "Failed: spec.recipe.source.repository: /nowhere/x does"),
        ({"revision": "mine"}, {"gpus": {"count": 1}}, "UnsupportedHardware", "layout 'package'"),
    ],
)
def test_what_only_another_spec_heals_is_failed_at_once(
    runs: Speedruns, shell: Shell, source: dict[str, Any], spec: dict[str, Any], reason: str, says: str
) -> None:
    shell("rm -rf fork && git init -q -b mine fork && mkdir fork/track_1_short && touch fork/track_1_short/x")
    shell("cd fork && git add -A && git -c user.name=me -c user.email=me@localhost commit -q -m one")
    runs.apply(modded("wrong", {"repository": str(HOME / "fork"), **source}, **spec))
    assert says in refusal(runs, "wrong", reason)
    assert runs.status("wrong")["phase"] == "Failed"
    assert "allocations" not in runs.status("wrong")
    shell("rm -rf fork")


def test_a_checkout_on_the_shared_file_system_is_waited_for_and_its_state_said(
    runs: Speedruns, slurm: Slurm, shell: Shell
) -> None:
    runs.apply(modded("mine", {"path": "~/my code"}))
    assert "Pending: spec.recipe.source.path: ~/my code is no directory" in refusal(runs, "mine", "SourcePathMissing")
    shell("mkdir coming && cd coming && git init -q -b main && mkdir data track_1_short")
    for name, text in FILES.items():
        shell(f"cat >coming/{name}", text)
    shell("cd coming && git add -A && git -c user.name=me -c user.email=me@localhost commit -q -m one")
    shell("echo 'import torch  # mine' >coming/train_gpt.py && mv coming 'my code'")
    status = runs.wait_finished("mine", timeout=90)
    log = Path(status["logPath"]).read_text()
    source = status["plan"]["source"]
    assert (status["phase"], source["dirty"]) == ("Succeeded", True), log
    code = Path(status["logPath"]).parent / "run-0/code"
    assert (code / "train_gpt.py").read_text() == "import torch  # mine\n"
    assert source["path"] == str(HOME / "my code")
    assert source["commit"] == shell("git -C 'my code' rev-parse HEAD").strip()
    shell("rm -rf 'my code'")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_kubectl_speedrun_runs_the_local_checkout_as_it_is(
    runs: Speedruns, slurm: Slurm, bed: Facts, fork: Repository, url: str, tmp_path: Path
) -> None:
    local, programs = tmp_path / "local", tmp_path / "bin"
    fork.git("clone", "-q", str(fork.path), str(local))
    fork.git("-C", str(local), "remote", "set-url", "origin", url)
    (local / "train_gpt.py").write_text("import torch  # not committed\n")
    programs.mkdir()
    plugin = programs / "kubectl-speedrun"
    where = Path(speedrun_operator.__file__).parents[1]
    plugin.write_text(f'#!/bin/sh\nPYTHONPATH={where} exec {sys.executable} -m speedrun_operator.cli_kubectl "$@"\n')
    plugin.chmod(0o755)
    put(runs, "Secret", "github", stringData={"token": GIT_TOKEN})
    (tmp_path / "speedrun.yaml").write_text(
        json.dumps(modded("attempt", {"secretRef": {"name": "github", "key": "token"}}))
    )

    def speedrun_run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["kubectl", "speedrun", "run", "-f", "../speedrun.yaml", "--diff", "-n", runs.namespace],
            cwd=local,
            env=os.environ
            | {"PATH": f"{programs}:{bed.kubectl.parent}:{os.environ['PATH']}", "KUBECONFIG": str(bed.kubeconfig)},
            capture_output=True,
            text=True,
            timeout=60,
        )

    done = speedrun_run()
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"code:        {url} at {fork.head}",
        "patch:       1 file changed, 1 insertion(+), 1 deletion(-)",
        "speedrun.speedrun.dev/attempt created",
        f"follow it:   kubectl get speedrun attempt -w --namespace={runs.namespace}",
        "wait for it: kubectl wait --for=condition=Finished speedrun/attempt --timeout=2h "
        f"--namespace={runs.namespace}",
        f"if it waits: kubectl describe speedrun attempt --namespace={runs.namespace}",
    ]
    status = runs.wait_finished("attempt", timeout=90)
    log = Path(status["logPath"]).read_text()
    assert status["phase"] == "Succeeded", log
    code = Path(status["logPath"]).parent / "run-0/code"
    assert (code / "train_gpt.py").read_text() == "import torch  # not committed\n"
    assert len(status["plan"]["source"]["patchHash"]) == 64

    (local / "train_gpt.py").write_text("import torch  # another\n")
    refused = speedrun_run()
    assert refused.returncode == 1
    assert "choose another metadata.name, or first: kubectl delete speedrun attempt" in refused.stderr
    maps = runs.kubectl("get", "configmaps", "-n", runs.namespace, "-o", "name").split()
    assert len([each for each in maps if "attempt-patch" in each]) == 1
    runs.kubectl("delete", "speedrun", "attempt", "-n", runs.namespace)
    wait_for(
        "the patch to go with it",
        lambda: "attempt-patch" not in runs.kubectl("get", "configmaps", "-n", runs.namespace, "-o", "name"),
        timeout=60,
    )
