"""Processes and devices: who this one is among those that torchrun started, where it computes, and how it is stopped.

Without torchrun the process is alone and needs no network at all.
"""

import os
import signal
import socket
import stat
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from importlib import metadata
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist
from torch import Tensor

from speedrun_trainer.data import UNITS

CPU = torch.device("cpu")
EXIT_TERMINATED = 128 + signal.SIGTERM  # as a shell reports a process that SIGTERM ended
PATIENCE = timedelta(minutes=30)  # of the others, while a rank compiles


class CannotRun(Exception):
    """This machine cannot do what is asked for; the message says why and what to do."""


@dataclass(frozen=True)
class Ranks:
    """This process's number among `world` processes, and where it computes."""

    rank: int
    world: int
    local_rank: int = 0
    local_world: int = 1
    device: torch.device = CPU

    def print0(self, line: str) -> None:
        """Print once for all processes, at once: a buffered line is of no use to who watches the run."""
        if self.rank == 0:
            print(line, flush=True)

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor, in place, by its sum over all processes."""
        if self.world > 1:
            for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
                work.wait()

    def all_agree(self, mine: bool) -> bool:
        """Whether all processes say yes; all must ask."""
        noes = torch.tensor(float(not mine), device=self.device)
        self.add_up([noes])
        return not noes.item()

    def wait_for_all(self) -> None:
        """Return when every process has come here. Who leaves torchrun early makes it end the others."""
        if self.world > 1:
            dist.barrier()


def world_size() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def ranks(device: str) -> Ranks:
    """From the variables that torchrun sets; `device` is auto, cpu or cuda. Raises CannotRun."""
    rank, world = int(os.environ.get("RANK", "0")), world_size()
    local_rank, local_world = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if UNITS % world:
        raise CannotRun(f"{world} processes cannot share a step's {UNITS} units: start 1, 2, 4 or 8 (--nproc_per_node)")
    gpus = 0 if device == "cpu" else torch.cuda.device_count()
    if device == "cuda" and not gpus:
        raise CannotRun("--device cuda: torch sees no GPU; look at nvidia-smi and CUDA_VISIBLE_DEVICES, or take cpu")
    if not gpus:
        return Ranks(rank, world, local_rank, local_world)
    if local_world > gpus:
        raise CannotRun(f"{local_world} processes, but this node shows {gpus} GPUs: --nproc_per_node={gpus}")
    return Ranks(rank, world, local_rank, local_world, torch.device("cuda", local_rank))


def connect(ranks: Ranks) -> None:
    """Join the other processes; returns when all are there."""
    if ranks.device.type == "cuda":
        torch.cuda.set_device(ranks.device)
    if ranks.world == 1:
        return
    one_machine = ranks.local_world == ranks.world
    if one_machine and "lo" in (name for _, name in socket.if_nameindex()):
        # Else they listen on the address that the host's own name resolves to, which may be no address of this host.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    if ranks.device.type == "cuda":
        dist.init_process_group("nccl", timeout=PATIENCE, device_id=ranks.device)
    else:
        dist.init_process_group("gloo", timeout=PATIENCE)


def disconnect() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def leave(code: int) -> None:
    """End the process if others may wait for it, after an error: to part from them in order could take for ever."""
    if dist.is_initialized():
        os._exit(code)


def installed(package: str) -> str | None:
    """The version of an installed package, without the cost of importing it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def compiler_caches() -> None:
    """Name folders that the compiler can write to, unless the environment names some.

    torch names its own after the user, and fails where a container's user has no name; Triton's lie below HOME, which
    may be read-only. What lies in them is run, so a folder that others could have filled is not taken.
    """
    folder = Path(tempfile.gettempdir()) / f"speedrun-compiler-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        folder = Path(tempfile.mkdtemp(prefix="speedrun-compiler-"))
    for variable, name in (("TORCHINDUCTOR_CACHE_DIR", "inductor"), ("TRITON_CACHE_DIR", "triton")):
        if not os.environ.get(variable):
            (folder / name).mkdir(exist_ok=True)
            os.environ[variable] = str(folder / name)
    os.environ.setdefault("USER", f"uid{os.getuid()}")


class Stop:
    """SIGTERM ends the process at once with EXIT_TERMINATED and says so; while `later` is set it is only noted.

    However often it comes: Slurm sends it to every process of a job, and torchrun once more to those that it started.
    """

    def __init__(self) -> None:
        self.asked = False
        self.later = False
        signal.signal(signal.SIGTERM, self._arrived)

    def _arrived(self, _number: int, _frame: FrameType | None) -> None:
        if self.later:
            self.asked = True
            return
        print("terminated by SIGTERM: the run ends here, without a result", file=sys.stderr, flush=True)
        os._exit(EXIT_TERMINATED)  # an orderly exit would wait for gloo's threads, or abort in them
