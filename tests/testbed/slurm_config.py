"""Slurm's configuration files for the emulated cluster: two nodes that `sinfo` shows as the guide does.

Only text is made here. The values are the ones that a Slurm 22.05 without systemd and without free cgroups accepts;
where one looks odd, the comment beside it says what happens without it.
"""

from __future__ import annotations

import shutil
import socket
from dataclasses import dataclass
from pathlib import Path

NODES = ("slurm-h100-0", "slurm-h100-1")
CLUSTER = "sunk"
PORTS = ("slurmctld", "slurmdbd", *NODES)


@dataclass(frozen=True)
class Profile:
    """How the emulated cluster behaves. Times are in seconds, memory in MB."""

    slurmd_timeout: int = 300
    min_job_age: int = 300
    kill_wait: int = 30
    cores_per_node: int = 64
    memory_per_core: int = 15000
    gather: str = "jobacct_gather/linux"
    store: str = "job_comment,job_script"
    scheduler: str = "sched_interval=1,bf_interval=1,sched_min_interval=0,batch_sched_delay=0"


# `default` is Slurm as it comes. `fast` is for tests that wait for a dead node, a forgotten or a stubborn job.
# `bench` holds a thousand small jobs at once and lets none of them be sampled by accounting.
PROFILES = {
    "default": Profile(),
    "fast": Profile(slurmd_timeout=10, min_job_age=10, kill_wait=2),
    "bench": Profile(
        cores_per_node=512,
        memory_per_core=1000,
        gather="jobacct_gather/none",
        store="job_comment",
        scheduler="sched_interval=1,bf_interval=1,sched_min_interval=0,batch_sched_delay=0,default_queue_depth=2000",
    ),
}


@dataclass(frozen=True)
class Paths:
    """Where the parts of this Slurm keep their files: all below `root`, what the daemons log in `log`."""

    root: Path
    log: Path

    @property
    def etc(self) -> Path:
        return self.root / "etc"

    @property
    def conf(self) -> Path:
        return self.etc / "slurm.conf"

    @property
    def munge(self) -> Path:
        return self.root / "munge"

    @property
    def munge_socket(self) -> Path:
        return self.munge / "munge.socket.2"

    @property
    def database(self) -> Path:
        return self.root / "database"

    @property
    def database_socket(self) -> Path:
        return self.database / "mysqld.sock"

    @property
    def controller(self) -> Path:
        return self.root / "controller"

    @property
    def devices(self) -> Path:
        return self.root / "devices"

    def spool(self, node: str) -> Path:
        return self.root / "spool" / node


def write(paths: Paths, profile: Profile, ports: dict[str, int], plugstack: str) -> None:
    """Make the directories and write every configuration file. `plugstack` is the text of plugstack.conf."""
    _directories(paths)
    paths.conf.write_text(slurm_conf(paths, profile, ports))
    (paths.etc / "plugstack.conf").write_text(plugstack)
    (paths.etc / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    # A GPU without a device file, or all with the same one, is refused by slurmd; a symlink each is accepted.
    (paths.etc / "gres.conf").write_text(
        f"NodeName=slurm-h100-[0-1] Name=gpu Type=nvidia_h100 File={paths.devices}/nvidia[0-7]\n"
    )
    database = paths.etc / "slurmdbd.conf"
    database.touch(mode=0o600)
    database.write_text(slurmdbd_conf(paths, ports))
    shutil.chown(database, "slurm", "slurm")


def _directories(paths: Paths) -> None:
    spools = [paths.spool(node) for node in NODES]
    shutil.rmtree(paths.root / "spool", ignore_errors=True)  # jobs of an earlier start
    for directory in (paths.log, paths.etc, paths.munge, paths.database, paths.controller, paths.devices, *spools):
        directory.mkdir(parents=True, exist_ok=True)
    for directory in (paths.log, paths.root, *paths.root.iterdir()):
        directory.chmod(0o755)
    shutil.chown(paths.munge, "munge", "munge")
    shutil.chown(paths.database, "mysql", "mysql")
    shutil.chown(paths.controller, "slurm", "slurm")
    shutil.chown(paths.log, "slurm", "slurm")
    for number in range(8):
        device = paths.devices / f"nvidia{number}"
        if not device.is_symlink():
            device.symlink_to("/dev/null")


def slurm_conf(paths: Paths, profile: Profile, ports: dict[str, int]) -> str:
    """The text of slurm.conf."""
    host = socket.gethostname()
    nodes = "\n".join(_node(node, host, profile, ports[node]) for node in NODES)
    return f"""\
ClusterName={CLUSTER}
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports["slurmctld"]}
SlurmUser=slurm
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={paths.munge_socket}
# bind to 127.0.0.1 instead of every address
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation={paths.controller}
SlurmdSpoolDir={paths.root}/spool/%n
SlurmctldPidFile={paths.log}/slurmctld.pid
SlurmdPidFile={paths.log}/slurmd-%n.pid
SlurmctldLogFile={paths.log}/slurmctld.log
SlurmdLogFile={paths.log}/slurmd-%n.log
PlugStackConfig={paths.etc}/plugstack.conf
# the nodes declare more cores and memory than the machine has
SlurmdParameters=config_overrides
# neither confines a job's processes: they may use every core that the machine really has
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType={profile.gather}
JobAcctGatherFrequency=task=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
# without it each job takes a whole node's memory
DefMemPerCPU={profile.memory_per_core}
SchedulerType=sched/backfill
SchedulerParameters={profile.scheduler}
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SlurmdTimeout={profile.slurmd_timeout}
SlurmctldTimeout=30
InactiveLimit=0
KillWait={profile.kill_wait}
MinJobAge={profile.min_job_age}
MaxJobCount=20000
GresTypes=gpu
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={ports["slurmdbd"]}
# sacct and sacctmgr look here, not at AuthInfo, for the munge socket
AccountingStoragePass={paths.munge_socket}
AccountingStorageTRES=gres/gpu
AccountingStoreFlags={profile.store}
{nodes}
PartitionName=compute-h100 Nodes=slurm-h100-[0-1] Default=NO MaxTime=INFINITE State=UP
PartitionName=all Nodes=slurm-h100-[0-1] Default=YES MaxTime=INFINITE State=UP
"""


def _node(node: str, host: str, profile: Profile, port: int) -> str:
    cores = profile.cores_per_node
    return (
        f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port}"
        f" CPUs={cores} Sockets=2 CoresPerSocket={cores // 2} ThreadsPerCore=1 RealMemory=1000000"
        " Gres=gpu:nvidia_h100:8 Features=compute-h100,gpu,cu128"
    )


def slurmdbd_conf(paths: Paths, ports: dict[str, int]) -> str:
    """The text of slurmdbd.conf. It names no password: MariaDB knows the user by its socket."""
    return f"""\
AuthType=auth/munge
AuthInfo=socket={paths.munge_socket}
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={ports["slurmdbd"]}
SlurmUser=slurm
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StorageLoc=slurm_acct_db
LogFile={paths.log}/slurmdbd.log
PidFile={paths.log}/slurmdbd.pid
CommunicationParameters=NoInAddrAny
"""
