"""The recipe modded-nanogpt has the effect of the guide's script: both run here, in real Slurm jobs.

Stand-ins: git on the node (no network), and in the container apt-get, pip and torchrun (testbed.pyxis). Where the
guide lies beside this checkout its own script runs too, and what both of them did is compared.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.speedruns import Speedruns
from cluster.test_slurm_bed import GUIDE, SINFO, Shell, put_checkout
from testbed import users
from testbed.facts import Facts
from testbed.kubectl import Kubectl
from testbed.operator import Operator
from testbed.part import Place
from testbed.processes import wait_for
from testbed.slurm import Slurm

EXAMPLE = Path(__file__).parents[2] / "examples" / "modded-nanogpt.yaml"
COMMIT = "f411b3d346aa52d3504324ca93c230fd84c6c07f"
URL = "https://github.com/KellerJordan/modded-nanogpt.git"
HOME = Path("/home") / users.NAMES[0]
ROOT = HOME / "guide-runs"
BASE_IMAGE = "docker://nvidia/cuda:13.1.1-cudnn-devel-ubuntu24.04"
SHARDS = ["fineweb_val_000000.bin", *(f"fineweb_train_{number:06d}.bin" for number in range(1, 10))]

# It knows one repository and one commit, and notes what it was asked for.
GIT = f"""\
#!/bin/bash
echo "$*" >>~/git-stand-in/asked
case "$*" in
"init -q code") exec cp -r ~/nanogpt/modded-nanogpt code ;;
"-C code remote add origin {URL}") exit ;;
"-C code fetch -q --depth=1 origin {COMMIT}") while [ -e ~/git-stand-in/held ]; do sleep 0.2; done; exit ;;
"-C code checkout -q --detach {COMMIT}") exec test -d code ;;
"-C "*"/tree rev-parse HEAD") echo {COMMIT}; exit ;;
"ls-remote -- {URL} HEAD "*) printf '{COMMIT}\\tHEAD\\n'; exit ;;
"init -q --bare "*/look | "-C "*"/look remote add origin {URL}") exit ;;
"-C "*"/look fetch -q --depth=1 --filter=tree:1 origin {COMMIT}") exit ;;
"-C "*"/look ls-tree --name-only "*) echo train_gpt.py; exit ;;
esac
echo "fatal: the stand-in does not know: $*" >&2
exit 128
"""

# NCCL_NET is what SUNK sets on clusters with RoCE.
PROFILE = 'export PATH="$HOME/git-stand-in:$PATH" NCCL_NET=IB\n'


@dataclass(frozen=True)
class Effect:
    """What a run did: apart from where its files are, it is the guide's or it is not."""

    trainer: str
    system: list[str]
    modules: list[str]
    shards: list[str]


@pytest.fixture(scope="module")
def shell(bed: Facts) -> Shell:
    return Shell(Path(bed["ssh_config"]))


@pytest.fixture(autouse=True)
def profile(shell: Shell) -> Iterator[None]:
    """The user's profile of these tests, a checkout for the stand-in of git, and an empty cache."""
    put_checkout(shell)
    shell("mkdir -p git-stand-in && cp -n .bashrc .bashrc.kept && cat >git-stand-in/git", GIT)
    shell("chmod +x git-stand-in/git; cat >.bashrc", PROFILE)
    yield
    # Jobs that outlived their test would still write where the next one begins.
    shell('scancel -Q -u "$USER"')
    wait_for("the user's jobs to be gone", lambda: shell('squeue -h -u "$USER"') == "", timeout=30)
    shell(f"mv .bashrc.kept .bashrc; rm -rf git-stand-in nanogpt {ROOT}")


@pytest.fixture
def slurm(bed: Facts, place: Place, shell: Shell) -> Iterator[Slurm]:
    """Slurm with both nodes free: these jobs take a whole one."""
    part = Slurm(place)
    wait_for("both nodes to be idle", lambda: shell("sinfo -o '%P %D %t %G %f'") == SINFO, timeout=30)
    yield part
    part.pyxis.succeed()


@pytest.fixture
def runs(bed: Facts, place: Place, kubectl: Kubectl, namespace: str) -> Iterator[Speedruns]:
    operator = Operator(place, bed, {"SPEEDRUN_SLURM__ROOT": str(ROOT)})
    operator.install()
    operator.start()
    yield Speedruns(kubectl, namespace)
    operator.stop()


def speedrun_of_guide(name: str, **spec: Any) -> dict[str, Any]:
    """The example under a name."""
    example = yaml.safe_load(EXAMPLE.read_text())
    return {**example, "metadata": {"name": name}, "spec": {**example["spec"], **spec}}


def apply(runs: Speedruns, name: str, **spec: Any) -> dict[str, Any]:
    """The example, applied under a name; its status at the end."""
    runs.apply(speedrun_of_guide(name, **spec))
    return runs.wait_finished(name, timeout=90)


def asked() -> list[str]:
    """What git was asked for."""
    return (HOME / "git-stand-in" / "asked").read_text().splitlines()


def log(status: dict[str, Any]) -> str:
    return Path(status["logPath"]).read_text()


def steps(slurm: Slurm, job: str) -> list[dict[str, Any]]:
    """The options that each step with a container was given."""
    return [event["options"] for event in slurm.pyxis.events(int(job)) if event["event"] == "step"]


def resources(slurm: Slurm, job: str) -> list[str]:
    """Partition, nodes, minutes, and what was asked for and given, once accounting has all of it."""

    def row() -> list[str]:
        fields = "Partition,NNodes,TimelimitRaw,ReqTRES,AllocTRES,State"
        return slurm.command("sacct", "-XnPj", job, "-o", fields).stdout.strip().split("|")

    wait_for("accounting to have the job", lambda: row()[0] != "" and row()[-1] == "COMPLETED", timeout=20)
    return row()[:-1]


def images() -> list[Path]:
    """Every image, half-built ones and what lies beside them too."""
    return sorted((ROOT / ".cache" / "image").glob("*"))


def data() -> Path:
    """Where the data set is."""
    [entry] = (ROOT / ".cache" / "data").glob("*")
    return entry / "files"


def makers(status: dict[str, Any]) -> dict[str, str]:
    """The job that made each entry while this Speedrun waited for it, by stage."""
    return {each["stage"]: each["jobId"] for each in status["preparing"] if "jobId" in each}


def effect(image: Path, data: Path, said: str) -> Effect:
    trainer = re.search(r"^\[stub\] (gpus=.*)$", said, re.MULTILINE)
    assert trainer, said
    with tarfile.open(image) as archive:
        packages = archive.extractfile("system/packages")
        assert packages is not None
        system = packages.read().decode().split()
        modules = [
            name.split("/")[3] for name in archive.getnames() if re.fullmatch(r"opt/venv/site/\w+/__init__\.py", name)
        ]
    return Effect(trainer[1], sorted(system), sorted(modules), sorted(each.name for each in data.iterdir()))


def test_the_recipe_runs_what_the_guide_says(runs: Speedruns, slurm: Slurm) -> None:
    status = apply(runs, "first")
    assert (status["phase"], status["val_loss"], status["reason"]) == ("Succeeded", 3.2782, "TargetReached"), log(
        status
    )
    partition, nodes, minutes, requested, allocated = resources(slurm, status["job"])
    assert (partition, nodes, minutes) == ("compute-h100", "1", "60")
    assert "gres/gpu=8" in requested
    assert "cpu=64" in allocated, "the node is not the job's alone"

    [entry] = images()
    image = str(entry / "image.sqsh")
    code = str(Path(status["logPath"]).parent / "run-0" / "code")
    mounts = {"container-mounts": f"{ROOT}:{ROOT}"}
    assert steps(slurm, status["job"]) == [{"container-image": image, "container-workdir": code, **mounts}] * 2
    assert effect(entry / "image.sqsh", data(), log(status)) == Effect(
        trainer="gpus=0,1,2,3,4,5,6,7 cpus=64 NCCL_NET=unset "
        "args=['--standalone', '--nproc_per_node=8', 'train_gpt.py']",
        system=["build-essential", "git", "python3-dev", "python3-venv"],
        modules=["huggingface_hub", "kernels", "numpy", "tiktoken", "torch", "tqdm"],
        shards=sorted(SHARDS),
    )
    assert {"dataMilliseconds", "trainMilliseconds"} <= set(status["clock"])


def test_jobs_without_gpus_prepare_what_the_guide_has_eight_of_them_wait_for(runs: Speedruns, slurm: Slurm) -> None:
    status = apply(runs, "first")
    jobs = makers(status)
    assert [each["stage"] for each in status["preparing"]] == [*jobs] == ["code", "image", "data", "downloads"]
    assert {each["state"] for each in status["preparing"]} == {"Ready"}
    # The test before this one prepared the same, and its cache is gone: Slurm still knows those jobs by their names.
    assert [each for each in status["preparing"] if "failures" in each] == []
    for job in jobs.values():
        partition, nodes, minutes, requested, allocated = resources(slurm, job)
        assert (partition, nodes, minutes) == ("compute-h100", "1", "120")
        assert "gres" not in requested + allocated
        assert "cpu=8,mem=32G" in allocated
    built = steps(slurm, jobs["image"])
    part = f"{images()[0]}.part.{jobs['image']}/image.sqsh"
    mounts = {"container-mounts": f"{ROOT}:{ROOT}"}
    assert built == [
        {"container-image": BASE_IMAGE, "container-save": part, **mounts},
        {"container-image": part, **mounts},
    ]
    [fetched] = (ROOT / ".cache" / "downloads").glob("*")
    names = {path.name for path in (fetched / "files").rglob("*") if path.is_file()}
    assert names == {"kernel.so", "gpt2"}
    facts = dict(line.split("=", 1) for line in (images()[0] / "manifest").read_text().splitlines())
    assert len(facts["sha256"]) == 64
    assert [each for each in asked() if "/look" not in each][:4] == [
        "init -q code",
        f"-C code remote add origin {URL}",
        f"-C code fetch -q --depth=1 origin {COMMIT}",
        f"-C code checkout -q --detach {COMMIT}",
    ]
    told = [message for _, reason, message in runs.events("first") if reason in ("Preparing", "Prepared")]
    assert len(told) == 8, told
    assert [f"job {jobs['image']} makes image {images()[0].name}" in each for each in told].count(True) == 1
    for stage, job in jobs.items():
        assert [each for each in told if each.startswith(f"job {job} makes {stage} ")], told
        assert [each for each in told if each.startswith(f"{stage} ") and " is there (" in each], told


def test_inline_is_the_guides_way(runs: Speedruns, slurm: Slurm) -> None:
    """The head of upstream, too, as the guide's clone has it: resolved once."""
    status = apply(runs, "first", slurm={"prepare": "Inline"}, recipe={"name": "modded-nanogpt"})
    assert status["phase"] == "Succeeded", log(status)
    assert (status["plan"]["source"]["revision"], status["plan"]["commit"]) == ("HEAD", COMMIT)
    assert len([each for each in asked() if each.startswith("ls-remote")]) == 1
    assert "preparing" not in status
    [entry] = images()
    image, part = str(entry / "image.sqsh"), f"{entry}.part.{status['job']}/image.sqsh"
    given = [(each["container-image"], each.get("container-save")) for each in steps(slurm, status["job"])]
    assert given == [(BASE_IMAGE, part), (part, None), *[(image, None)] * 4]
    assert {"imageMilliseconds", "dataMilliseconds", "trainMilliseconds"} <= set(status["clock"])


@pytest.mark.full
def test_a_second_run_shares_the_image_and_the_data(runs: Speedruns, slurm: Slurm) -> None:
    first = apply(runs, "first")
    [image] = images()
    before = {path: path.stat().st_mtime_ns for path in (image / "image.sqsh", *data().glob("*.bin"))}
    assert len(before) == 1 + len(SHARDS)

    second = apply(runs, "second")
    assert [status["phase"] for status in (first, second)] == ["Succeeded", "Succeeded"]
    assert makers(second) == {}
    assert {options["container-image"] for options in steps(slurm, second["job"])} == {str(image / "image.sqsh")}
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert images() == [image]
    assert first["logPath"] != second["logPath"]


@pytest.mark.parametrize(
    ("fault", "reason"), [pytest.param("package", "PackageMissing", marks=pytest.mark.full), ("save", "StorageFull")]
)
def test_a_build_that_fails_leaves_no_image_behind(
    runs: Speedruns, slurm: Slurm, shell: Shell, fault: str, reason: str
) -> None:
    """Pyxis saves a half-built container and a broken file just the same; the guide's script would use it for ever."""
    if fault == "package":
        shell("cat >>.bashrc", "export STUB_PIP_FAIL=torch\n")
    else:
        slurm.pyxis.fail_saves()
    broken = apply(runs, "broken")
    assert (broken["phase"], broken["reason"]) == ("Failed", reason)
    job = makers(broken)["image"]
    assert f"(job {job}, log .cache/jobs/" in broken["runs"][0]["message"]
    assert "job" not in broken, "no GPU was asked for"
    # A job that was cancelled before it began, since this one failed, owns nothing.
    owners = (ROOT / ".cache" / "jobs").glob("*/try-0/owner")
    [attempt] = (path.parent for path in owners if path.read_text() == f"{job}\n")
    said = (attempt / "log").read_text()
    assert "pyxis: exported container" in said or "pyxis: failed to export container" in said
    assert images() == []

    slurm.pyxis.succeed()
    shell("cat >.bashrc", PROFILE)
    healed = apply(runs, "healed")
    assert healed["phase"] == "Succeeded", log(healed)
    assert "container-save" in steps(slurm, makers(healed)["image"])[0]
    assert len(images()) == 1


@pytest.mark.skipif(not GUIDE.exists(), reason="the guide is not beside this checkout")
def test_the_guides_own_script_has_the_same_effect(runs: Speedruns, slurm: Slurm, shell: Shell) -> None:
    status = apply(runs, "ours")
    assert status["phase"] == "Succeeded", log(status)
    [image] = images()
    ours = effect(image / "image.sqsh", data(), log(status))

    block = re.search(r"^```bash speedrun\.sbatch[^\n]*\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    assert block is not None
    shell("cat >nanogpt/speedrun.sbatch", block[1])
    job = shell.sbatch("nanogpt", "speedrun.sbatch")
    said = (HOME / "nanogpt" / f"nanogpt-speedrun-{job}.out").read_text()
    theirs = effect(HOME / "nanogpt" / "nanogpt.sqsh", HOME / "nanogpt/modded-nanogpt/data/fineweb10B", said)
    assert ours == theirs

    ours_last, theirs_last = steps(slurm, status["job"])[-1], steps(slurm, job)[-1]
    assert set(ours_last) - set(theirs_last) == {"container-mounts"}
    assert set(theirs_last) <= set(ours_last)
    assert resources(slurm, status["job"]) == resources(slurm, job)
