"""Processes: who this one is among those that torchrun started, what they add up together, and how they are stopped.

Without torchrun the process is alone and needs no network at all.
"""

import os
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType

import torch
import torch.distributed as dist
from torch import Tensor

EXIT_TERMINATED = 128 + signal.SIGTERM  # as a shell reports a process that SIGTERM ended


@dataclass(frozen=True)
class Ranks:
    """This process's number among `world` processes."""

    rank: int
    world: int

    def print0(self, line: str) -> None:
        """Print once for all processes, at once: a buffered line is of no use to who watches the run."""
        if self.rank == 0:
            print(line, flush=True)

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor, in place, by its sum over all processes: one exchange for all of them."""
        if self.world == 1:
            return
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        dist.all_reduce(flat)
        start = 0
        for tensor in tensors:
            tensor.copy_(flat[start : start + tensor.numel()].view_as(tensor))
            start += tensor.numel()

    def wait_for_all(self) -> None:
        """Return when every process has come here. Who leaves torchrun early makes it end the others."""
        if self.world > 1:
            dist.barrier()


def ranks() -> Ranks:
    """From the variables that torchrun sets."""
    return Ranks(rank=int(os.environ.get("RANK", "0")), world=int(os.environ.get("WORLD_SIZE", "1")))


def connect(ranks: Ranks) -> None:
    """Join the other processes; returns when all are there."""
    if ranks.world == 1:
        return
    one_machine = os.environ.get("LOCAL_WORLD_SIZE") == str(ranks.world)
    if one_machine and "lo" in (name for _, name in socket.if_nameindex()):
        # Else gloo listens on the address that the host's own name resolves to, which may be no address of this host.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo")


def disconnect() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def end_on_sigterm() -> None:
    """From now on SIGTERM ends the process with EXIT_TERMINATED and a line that says so."""

    def end(_number: int, _frame: FrameType | None) -> None:
        print("terminated by SIGTERM: the run ends here, without a result", file=sys.stderr, flush=True)
        os._exit(EXIT_TERMINATED)  # an orderly exit would wait for gloo's threads, or abort in them

    signal.signal(signal.SIGTERM, end)
