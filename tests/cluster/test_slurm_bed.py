"""The Slurm half of the bed is a real cluster to its users: what the guide shows is what they see."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from testbed import users
from testbed.facts import Facts
from testbed.login import Login
from testbed.part import Place
from testbed.processes import wait_for
from testbed.slurm import Slurm
from testbed.slurm_config import NODES

GUIDE = Path(__file__).parents[3] / "shared" / "reference" / "andromeda-nanogpt-speedrun.md"
SINFO = """\
PARTITION NODES STATE GRES AVAIL_FEATURES
compute-h100 2 idle gpu:nvidia_h100:8 compute-h100,gpu,cu128
all* 2 idle gpu:nvidia_h100:8 compute-h100,gpu,cu128
"""


@dataclass(frozen=True)
class Shell:
    """Commands on the login node, through OpenSSH, as a person at a terminal gives them."""

    config: Path
    host: str = "training"

    def run(
        self, command: str, *options: str, stdin: str = "", timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        argv = ["ssh", "-F", str(self.config), *options, self.host, command]
        return subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=timeout, check=False)

    def __call__(self, command: str, stdin: str = "", timeout: float = 60) -> str:
        done = self.run(command, stdin=stdin, timeout=timeout)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def sbatch(self, directory: str, arguments: str) -> str:
        """Submit from a directory below the home and return the id when the job has ended (`--wait` looks rarely)."""
        submit = f"cd {directory} && job=$(sbatch --parsable {arguments}) && echo $job"
        return self(f"{submit} && while squeue -h -j $job | grep -q .; do sleep 0.05; done", timeout=240).strip()

    def job(self, body: str, options: str = "") -> tuple[str, str]:
        """Run a batch job to its end in a new directory; its id and what it wrote."""
        self._write_script(body)
        return self.sbatch("bed-test", f"-o log {options} job.sh"), self("cat bed-test/log")

    def allocation(self, body: str) -> str:
        """Run a script whose `srun`s are steps of one job, in a new directory; what it wrote."""
        self._write_script(body)
        return self("cd bed-test && salloc -Q bash ./job.sh 2>&1")

    def _write_script(self, body: str) -> None:
        self("rm -rf bed-test && mkdir bed-test && cat >bed-test/job.sh", f"#!/bin/bash\n{body}\n")


@pytest.fixture
def shell(bed: Facts) -> Shell:
    return Shell(Path(bed["ssh_config"]))


@pytest.fixture
def slurm(bed: Facts, place: Place) -> Iterator[Slurm]:
    """Slurm's daemons and the Pyxis stand-in, to be broken: all is well again after the test."""
    part = Slurm(place)
    yield part
    part.pyxis.succeed()
    part.heal()


@pytest.fixture
def login(bed: Facts, place: Place) -> Iterator[Login]:
    """sshd, to be broken: it runs as at the start after the test."""
    part = Login(place)
    yield part
    part.heal()


def test_sinfo_prints_what_the_guide_prints(shell: Shell) -> None:
    assert shell("sinfo -o '%P %D %t %G %f'") == SINFO


def test_a_job_runs_on_every_core_and_accounting_knows_it(shell: Shell, slurm: Slurm) -> None:
    job, log = shell.job("nproc; echo $SLURM_CPUS_ON_NODE $CUDA_VISIBLE_DEVICES; exit 3", "--gres=gpu:2 --comment=ours")
    assert log.splitlines() == [str(len(os.sched_getaffinity(0))), "1 0,1"]

    def row() -> str:
        return shell(f"sacct -nXP -j {job} -o state,exitcode,user,comment").strip()

    wait_for("accounting to know the end", lambda: row() == f"FAILED|3:0|{users.NAMES[0]}|ours", timeout=40)


def test_jobs_run_python_with_torch(shell: Shell, bed: Facts) -> None:
    done = shell.run(f"srun -Q {bed.job_python} -c 'import torch; print(torch.ones(2, 2).sum().item())'")
    assert (done.stdout, done.returncode) == ("4.0\n", 0)


# -- the login


@pytest.mark.parametrize("user", users.NAMES, ids=["first", "second"])
@pytest.mark.parametrize("prefix", ["", f"{users.CLUSTER_ID}."])
def test_a_user_comes_in_under_both_names(shell: Shell, user: str, prefix: str) -> None:
    command = Shell(shell.config, f"training-{user}").run("whoami; pwd", "-l", prefix + user)
    assert command.stdout.split() == [user, f"/home/{user}"]


def test_a_key_of_somebody_else_is_refused(shell: Shell) -> None:
    stranger = Shell(shell.config, f"training-{users.NAMES[1]}")  # bob's key
    refused = stranger.run("true", "-l", f"{users.CLUSTER_ID}.{users.NAMES[0]}")
    assert refused.returncode == 255
    assert "Permission denied (publickey)" in refused.stderr


def test_a_changed_host_key_is_noticed(shell: Shell, login: Login) -> None:
    login.use_host_key("other_host")
    refused = shell.run("true")
    assert refused.returncode == 255
    assert "Host key verification failed" in refused.stderr
    login.use_host_key("host")
    assert shell("echo back") == "back\n"


def test_sessions_can_be_frozen_and_dropped(shell: Shell, login: Login) -> None:
    argv = ["ssh", "-F", str(shell.config), shell.host, "echo ready; read -r until_the_connection_ends"]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as session:
        assert session.stdout is not None
        assert session.stdout.readline() == "ready\n"
        login.pause()
        with pytest.raises(subprocess.TimeoutExpired):
            shell.run("true", timeout=0.5)
        login.resume()
        assert shell("echo alive") == "alive\n"
        login.drop_sessions()
        _, stderr = session.communicate(timeout=10)
    assert session.returncode == 255
    assert "closed by remote host" in stderr
    login.stop()
    assert "Connection refused" in shell.run("true").stderr


# -- the containers


TRAINER = """\
flash_attn_interface = get_kernel("kernels-community/flash-attn3", version=1)
enc = tiktoken.get_encoding("gpt2")
"""


def put_checkout(shell: Shell) -> None:
    """What `git clone` would bring, as far as the job looks at it."""
    shell("rm -rf nanogpt && mkdir -p nanogpt/modded-nanogpt/data")
    shell("cat >nanogpt/modded-nanogpt/requirements.txt", "numpy\ntqdm\ntorch\nhuggingface-hub\nkernels\ntiktoken\n")
    shell("cd nanogpt/modded-nanogpt && echo 'import torch' >data/cached_fineweb10B.py && cat >train_gpt.py", TRAINER)


@pytest.mark.skipif(not GUIDE.exists(), reason="the guide is not beside this checkout")
def test_the_guides_script_runs_unchanged(shell: Shell, slurm: Slurm) -> None:
    block = re.search(r"^```bash speedrun\.sbatch[^\n]*\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    assert block is not None
    put_checkout(shell)
    shell("cat >nanogpt/speedrun.sbatch", block[1])
    job = shell.sbatch("nanogpt", "speedrun.sbatch")
    log = shell(f"cat nanogpt/nanogpt-speedrun-{job}.out")
    last = [line for line in log.splitlines() if line.startswith("step:")][-1]
    assert re.fullmatch(r"step:5/5 val_loss:3\.2782 train_time:\d+ms step_avg:\d+\.\d\dms", last)
    assert "gpus=0,1,2,3,4,5,6,7 cpus=64 NCCL_NET=unset" in log
    shards = shell("ls nanogpt/modded-nanogpt/data/fineweb10B").split()
    assert shards == [f"fineweb_train_{number:06d}.bin" for number in range(1, 10)] + ["fineweb_val_000000.bin"]
    steps = [event["options"] for event in slurm.pyxis.events(int(job)) if event["event"] == "step"]
    image = f"/home/{users.NAMES[0]}/nanogpt/nanogpt.sqsh"
    assert [step["container-image"] for step in steps][1:] == [image, image]
    assert steps[0]["container-save"] == image

    again = shell.sbatch("nanogpt", "speedrun.sbatch")
    kinds = [(event["event"], event["step"]) for event in slurm.pyxis.events(int(again))]
    assert kinds == [("step", 0), ("step", 1)]  # the image was there, so nothing was built


BUILD = """\
srun --container-image=docker://nvidia/cuda:13.1.1-cudnn-devel-ubuntu24.04 --container-save=$PWD/image.sqsh bash -c '
  set -euo pipefail
  apt-get update; apt-get install -y git python3-venv
  python3 -m venv /opt/venv
  /opt/venv/bin/pip install numpy
  /opt/venv/bin/pip install torch==2.10'
"""


def test_a_failed_build_still_leaves_an_image_and_it_is_half_built(shell: Shell) -> None:
    log = shell.allocation(
        f"export STUB_PIP_FAIL=torch\n{BUILD}echo build=$?\n"
        "srun --container-image=$PWD/image.sqsh bash -c 'ls /opt/venv/bin; ls /opt/venv/site'\n"
        "srun --container-image=$PWD/image.sqsh /opt/venv/bin/torchrun train_gpt.py; echo run=$?"
    )
    assert "ERROR: No matching distribution found for torch==2.10" in log
    assert re.search(r"pyxis: exported container pyxis_\d+\.0 to \S+/bed-test/image\.sqsh", log)
    assert "build=1\n" in log
    assert "\npip\npython\npython3\nnumpy\n" in log
    assert "execve(): /opt/venv/bin/torchrun: No such file or directory" in log
    assert "run=2\n" in log


def test_a_save_replaces_the_image_in_place_and_may_break_off(shell: Shell, slurm: Slurm) -> None:
    slurm.pyxis.fail_saves()
    log = shell.allocation(
        f"echo precious >image.sqsh\n{BUILD}echo build=$?\nsrun --container-image=$PWD/image.sqsh true; echo run=$?"
    )
    assert "Write failed because No space left on device" in log
    assert "failed to export container" in log
    assert "build=0\n" in log  # srun does not tell
    assert "FATAL ERROR:Can't find a SQUASHFS superblock on " in log
    assert "run=1\n" in log


@pytest.mark.parametrize(
    ("image", "said"),
    [
        (
            "$PWD/nope.sqsh",
            ["failed to create container filesystem", "[ERROR] No such file or directory: {home}/nope.sqsh"],
        ),
        ("./job.sh", ["failed to create container filesystem", "[ERROR] Invalid image format: ./job.sh"]),
        (
            "docker://nvidia/cuda:13.1.1-cudnn-devel-ubuntu24.04",
            [
                "failed to import docker image: docker://nvidia/cuda:13.1.1-cudnn-devel-ubuntu24.04",
                "/v2/nvidia/cuda/manifests/13.1.1-cudnn-devel-ubuntu24.04 returned error code: 429",
            ],
        ),
    ],
    ids=["missing", "no-image", "rate-limited"],
)
def test_an_image_that_cannot_be_had_fails_in_pyxis_words(
    shell: Shell, slurm: Slurm, image: str, said: list[str]
) -> None:
    slurm.pyxis.fail_pulls()
    log = shell.allocation(f"srun --container-image={image} true; echo rc=$?")
    home = f"/home/{users.NAMES[0]}/bed-test"
    for text in (*said, "printing enroot log file:", "Failed to invoke spank plugin stack"):
        assert text.format(home=home) in log
    assert log.endswith("rc=1\n")


def test_saving_to_a_directory_is_refused_before_the_job_starts(shell: Shell) -> None:
    refused = shell.run("srun --container-image=docker://ubuntu --container-save=images/ true")
    assert "pyxis: --container-save: target is a directory" in refused.stderr
    assert refused.returncode != 0


def test_opt_is_private_to_the_container(shell: Shell) -> None:
    log = shell.allocation(
        "srun --container-image=docker://ubuntu touch /opt/mine; ls /opt; touch /opt/theirs; echo rc=$?"
    )
    assert "mine" not in log
    assert "Permission denied" in log


# -- what happens to a cluster


def test_a_frozen_controller_answers_after_it_resumed(slurm: Slurm) -> None:
    slurm.pause("slurmctld")
    with pytest.raises(subprocess.TimeoutExpired):
        slurm.command("sinfo", timeout=0.5)
    slurm.resume("slurmctld")
    assert slurm.command("sinfo").returncode == 0


def test_a_killed_controller_comes_back_with_its_jobs(shell: Shell, slurm: Slurm) -> None:
    job = shell("sbatch --parsable --hold -o /dev/null --wrap true").strip()
    slurm.stop("slurmctld")
    assert "DOWN" in slurm.command("scontrol", "ping").stdout
    slurm.start("slurmctld")
    slurm.kill("slurmctld")
    slurm.start("slurmctld")
    assert shell(f"squeue -h -j {job} -o %T").strip() == "PENDING"
    shell(f"scancel {job}")


def test_without_slurmdbd_accounting_says_so_and_jobs_go_on(shell: Shell, slurm: Slurm) -> None:
    slurm.stop("slurmdbd")
    refused = shell.run("sacct")
    assert refused.returncode == 1
    assert "Connection refused" in refused.stderr
    job, log = shell.job("echo ran")
    assert log == "ran\n"
    slurm.start("slurmdbd")
    wait_for("accounting to catch up", lambda: "COMPLETED" in shell(f"sacct -nXP -j {job} -o state"), timeout=40)


def test_a_node_that_fails_takes_its_processes_with_it(shell: Shell, slurm: Slurm) -> None:
    job = shell(f"sbatch --parsable -w {NODES[1]} -o /dev/null --wrap 'sleep 300; true'").strip()
    wait_for("the job's shell and its child", lambda: len(slurm.user_processes()) == 2, timeout=30)
    slurm.fail_node(NODES[1])
    assert slurm.user_processes() == []
    shell(f"scancel {job}")
    slurm.start(NODES[1])
    wait_for("the node to be idle again", lambda: shell("sinfo -o '%P %D %t %G %f'") == SINFO, timeout=60)


def test_nothing_listens_beyond_loopback_and_the_nodes_own_link(bed: Facts, place: Place) -> None:
    links = subprocess.run(["ip", "-4", "-o", "addr", "show"], capture_output=True, text=True, check=True).stdout
    own = {line.split()[3].partition("/")[0] for line in links.splitlines() if line.split()[1].startswith("srbed")}
    listeners = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True, check=True).stdout.splitlines()
    processes = [place.processes.get(name) for name in place.processes.names()]
    ours = [line for proc in processes if proc for line in listeners if f"pid={proc.pid}," in line]
    assert len(ours) >= 5
    listening = {line.split()[3].rpartition(":")[0] for line in ours}
    assert "127.0.0.1" in listening and listening - own == {"127.0.0.1"}


def test_down_ends_what_resists_and_the_next_start_makes_nothing_anew(shell: Shell, slurm: Slurm) -> None:
    body = "trap '' TERM; setsid bash -c 'trap \"\" TERM; while :; do sleep 1; done' & while :; do sleep 1; done"
    job = shell("cat >stubborn.sh && sbatch --parsable -o /dev/null stubborn.sh", f"#!/bin/bash\n{body}\n").strip()
    wait_for("the job's processes", lambda: len(slurm.user_processes()) >= 3, timeout=30)
    slurm.down()
    assert slurm.user_processes() == []
    # What takes a start its seconds: the database and its accounts.
    made = [slurm.paths.database / name for name in ("complete", "accounts")]
    before = [each.stat().st_mtime_ns for each in made]
    facts = slurm.up()
    assert [each.stat().st_mtime_ns for each in made] == before
    assert facts["slurm_conf"] == str(slurm.paths.conf)
    assert shell("sinfo -o '%P %D %t %G %f'") == SINFO
    assert shell("squeue -h") == ""
    wait_for("accounting", lambda: "CANCELLED" in shell(f"sacct -nXP -j {job} -o state"), timeout=40)
