"""A run on disk: what it takes to go on exactly where it was, and the weights alone for others.

Files appear by rename, whole or not at all. A checkpoint holds whole tensors, so a run can go on with another number of
processes; on the same device and number of processes it goes on bit for bit (on a GPU with --deterministic).
"""

import importlib.util
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from speedrun_trainer.report import first_line
from speedrun_trainer.sharding import Optimizer

NAME = "state.pt"
ANEW = "remove it to start anew"


class CheckpointError(Exception):
    """A checkpoint cannot be used; the message names the file and says what to do."""


@dataclass(frozen=True)
class Place:
    """Where in a run a checkpoint was made: after `step` steps, `train_time` ms on the training clock."""

    step: int
    train_time: float


def require_writable(folder: Path) -> None:
    """Make the folder and write into it, so that it does not fail after hours. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


def require_weights(path: Path) -> None:
    """What `save_weights` needs, asked for hours before. Raises OSError or CheckpointError."""
    if path.is_dir():
        raise CheckpointError(f"{path}: is a folder; --weights names the file that is written")
    if importlib.util.find_spec("safetensors") is None:
        raise CheckpointError("--weights needs the package safetensors: pip install 'speedrun-operator[trainer]'")
    require_writable(path.parent)


def finite(model: nn.Module) -> bool:
    """Whether the weights are numbers: with others a run cannot go on, and they must not replace a good checkpoint."""
    return all(bool(parameter.detach().isfinite().all()) for parameter in model.parameters())


def save(folder: Path, place: Place, model: nn.Module, optimizer: Optimizer, facts: Mapping[str, Any]) -> None:
    """Write the checkpoint; all processes must call. `facts` are what a run that goes on must agree in."""
    state = optimizer.state()
    if optimizer.rank == 0:
        parameters = {name: parameter.detach().cpu() for name, parameter in model.named_parameters()}
        content = {
            "place": {"step": place.step, "train_time": place.train_time},
            "facts": json.dumps(dict(facts), sort_keys=True),
            "parameters": parameters,
            "optimizer": state,
        }
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(f".{NAME}.*.tmp"):  # of a process that was killed; a folder is one run's
            left.unlink(missing_ok=True)
        temporary = folder / f".{NAME}.{os.getpid()}.tmp"
        try:
            with temporary.open("wb") as file:
                torch.save(content, file)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(folder / NAME)
        finally:
            temporary.unlink(missing_ok=True)


@torch.no_grad()
def load(folder: Path, model: nn.Module, optimizer: Optimizer, facts: Mapping[str, Any]) -> Place | None:
    """Put model and optimizer where the checkpoint was made; None if there is none. Raises CheckpointError."""
    path = folder / NAME
    if not path.exists():
        return None
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        saved = json.loads(content["facts"])
        place = Place(**content["place"])
    except Exception as error:  # torch has many ways to say that a file is not its own
        raise CheckpointError(f"{path}: not a checkpoint of this trainer ({first_line(error)}); {ANEW}") from error
    for name, value in facts.items():
        if saved.get(name) != value:
            raise CheckpointError(
                f"{path}: is of a run with {name} {saved.get(name)!r}, this one has {value!r}: "
                "give the same options, or another folder"
            )
    try:
        for name, parameter in model.named_parameters():
            parameter.copy_(content["parameters"][name])
        optimizer.load(content["optimizer"], place.step)
    except (KeyError, RuntimeError) as error:  # a tensor is missing, or of another shape
        raise CheckpointError(f"{path}: is of another version of this trainer ({first_line(error)}); {ANEW}") from error
    return place


def save_weights(path: Path, model: nn.Module, metadata: Mapping[str, str]) -> None:
    """The parameters alone, as safetensors; `metadata` says what they are of. Raises OSError."""
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {
        name: p.detach().cpu().contiguous() for name, p in model.named_parameters() if p.numel()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        save_file(tensors, temporary, metadata=dict(metadata))
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
