"""The form of a recipe, and the recipes that ship.

A recipe is trusted data of this package. What a user gives (parameters) reaches its steps only as environment
variables, `PARAM_<NAME>`, never as text in a script.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from enum import StrEnum
from functools import cache
from importlib import resources
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic.alias_generators import to_camel

RESERVED_STEPS = frozenset({"image", "image-probe"})


class RecipeModel(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="forbid")


class Stage(StrEnum):
    """What a step is for; the phase and the clock follow it."""

    IMAGE = "image"
    CODE = "code"
    DATA = "data"
    DOWNLOADS = "downloads"
    TRAIN = "train"


class Parameter(RecipeModel):
    """A parameter that a user may set. Strings must match `pattern` as a whole."""

    type: Literal["integer", "string"]
    default: int | str
    description: str
    minimum: int = 0
    maximum: int = 2**31 - 1
    pattern: str = r"[A-Za-z0-9_.-]*"

    def check(self, value: int | str) -> str:
        """The value as text for the environment; ValueError (what is wrong) if it does not fit."""
        if self.type == "integer":
            if isinstance(value, str) and not re.fullmatch(r"-?[0-9]{1,18}", value):
                raise ValueError("must be a whole number")
            if not self.minimum <= int(value) <= self.maximum:
                raise ValueError(f"must be from {self.minimum} to {self.maximum}")
            return str(int(value))
        text = str(value)
        if not re.fullmatch(self.pattern, text):
            raise ValueError(f"must match {self.pattern}")
        return text


class GpuNeeds(RecipeModel):
    """Hardware a recipe runs on. The first count is the default; no types means any."""

    types: tuple[str, ...] = ()
    counts: tuple[int, ...] = Field(min_length=1)
    driver: int | None = Field(default=None, ge=1, description="Oldest major version of NVIDIA's driver that will do.")


class Layout(RecipeModel):
    """One of the forms that upstream's code has had, known by a file or directory at its root. The first fits."""

    name: str
    root: str = Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", description="The entry of the root that only it has.")
    gpu_counts: tuple[int, ...] = Field(default=(), description="Counts that it runs on; none: those of the recipe.")


class BuildStep(RecipeModel):
    """One step of building an image. `system`: packages of the system; `python`: of the Python environment."""

    kind: Literal["system", "python"]
    run: str


class Container(RecipeModel):
    """The container that steps with `container: true` run in, built once from a base image."""

    base_image: str
    build: tuple[BuildStep, ...] = Field(min_length=1)
    inputs: tuple[str, ...] = Field(default=(), description="Files of the code that the build reads.")
    probe: str = Field(description="A command that fails in a half-built image.")
    versions: tuple[str, ...] = Field(default=(), description="Python packages whose versions the image's record has.")
    python: str = Field(default="python3", description="The container's own interpreter.")
    venv: str | None = Field(
        default=None, description="Where the `python` steps put their environment; a pod has it in its cache volume."
    )
    size_mib: int = Field(default=16384, ge=1, description="What a build may need on disk.")


class Files(RecipeModel):
    """Files of a data set that are numbered from `first` on. `pattern` has one number, as in fineweb_train_%06d.bin.

    `count` is how many, or the name of the parameter that says it.
    """

    pattern: str = Field(pattern=r"^[A-Za-z0-9_.-]*%0[1-9]d[A-Za-z0-9_.-]*$")
    first: int = Field(ge=0)
    count: int | str

    def names(self, parameters: Mapping[str, str]) -> list[str]:
        """The files' names. Raises ValueError where the count is not the same in every run."""
        text = str(self.count) if isinstance(self.count, int) else parameters[self.count]
        if not re.fullmatch("[0-9]{1,6}", text):
            raise ValueError(f"{self.count}: must be the same in every run: it says what is downloaded before them")
        return [self.pattern % number for number in range(self.first, self.first + int(text))]


class Data(RecipeModel):
    """A data set that is downloaded once for all runs, by a command that leaves its files in $SPEEDRUN_DATA."""

    dataset: str = Field(description="What it is, whoever downloads it.")
    path: str = Field(description="Where the code looks for it; a link there leads to $SPEEDRUN_DATA.")
    fetch: str
    container: bool = False
    files: tuple[Files, ...] = Field(min_length=1)
    file_mib: int = Field(ge=0, description="Size of one file on disk at most.")

    def names(self, parameters: Mapping[str, str]) -> tuple[str, ...]:
        """The names of all files. Raises ValueError, which names the parameter, as `Files.names`."""
        return tuple(name for files in self.files for name in files.names(parameters))


class Mentions(RecipeModel):
    """What the code itself names: matches of an extended regular expression in files or directories of the code."""

    pattern: str
    files: tuple[str, ...] = Field(min_length=1)


class Downloads(RecipeModel):
    """What the program would download at its start (kernels, tokenizer files), fetched once for all runs.

    `environment`: variables, and the directory below the entry that each shall name. `mentions` reaches the command as
    the file $SPEEDRUN_MENTIONS, a match a line. `proof` runs on the GPUs before training.
    """

    environment: dict[str, str] = Field(min_length=1)
    mentions: Mentions | None = None
    fetch: str
    container: bool = False
    proof: str = ""
    size_mib: int = Field(default=2048, ge=1)


class Step(RecipeModel):
    """One command of a run, as bash text."""

    name: str = Field(pattern=r"^[a-z][a-z0-9-]{0,62}$")
    stage: Stage
    run: str
    container: bool = False


class Recipe(RecipeModel):
    """A speedrun as data. Seconds are wall time on the recipe's own hardware."""

    name: str
    about: str
    metric: str = "val_loss"
    target: Annotated[Decimal, Field(gt=0)]
    log_format: Literal["modded-nanogpt"]
    gpus: GpuNeeds
    exclusive: bool = False
    cpus: int = Field(default=1, ge=1)
    memory_mib: int = Field(default=512, ge=1)
    start_up_seconds: int = Field(ge=0)
    run_seconds: int = Field(ge=1)
    stall_seconds: int = Field(default=900, ge=60, description="No new log line for so long is a stall.")
    repository: str | None = None
    revision: str | None = None
    layouts: tuple[Layout, ...] = ()
    package: str | None = Field(default=None, description="A Python package of ours that goes with the job.")
    container: Container | None = None
    data: Data | None = None
    downloads: Downloads | None = None
    compile_cache: bool = Field(default=False, description="Keep what torch.compile and Triton made for later runs.")
    environment: dict[str, str] = Field(default_factory=dict)
    parameters: dict[str, Parameter] = Field(default_factory=dict)
    steps: tuple[Step, ...] = Field(min_length=1)

    @field_validator("steps")
    @classmethod
    def _files_of_their_own(cls, steps: tuple[Step, ...]) -> tuple[Step, ...]:
        """Each step is a file of its name, beside those of the container's build."""
        names = [each.name for each in steps]
        for name in names:
            if name in RESERVED_STEPS:
                raise ValueError(f"a step must not be called {name!r}: the container's build is")
            if names.count(name) > 1:
                raise ValueError(f"two steps are called {name!r}")
        return steps


class RecipeError(Exception):
    """A shipped recipe cannot be read: a fault of the installation, with the file and the field."""


def read(file: str, text: str) -> Recipe:
    """The recipe that `text`, the content of `file`, holds. Raises RecipeError."""
    try:
        recipe = Recipe.model_validate(yaml.safe_load(text))
    except yaml.YAMLError as error:
        raise RecipeError(f"recipe {file}: {error}") from error
    except ValidationError as invalid:
        faults = [
            f"{'.'.join(map(str, each['loc'])) or 'the file'}: {each['msg']}"
            for each in invalid.errors(include_url=False)
        ]
        raise RecipeError(f"recipe {file}: {'; '.join(faults)}") from invalid
    if file != f"{recipe.name}.yaml":
        raise RecipeError(f"recipe {file}: name: it calls itself {recipe.name!r}")
    return recipe


@cache
def shipped() -> dict[str, Recipe]:
    """The recipes in this package by name, in the order of their names."""
    found: dict[str, Recipe] = {}
    for file in sorted(resources.files(__package__).iterdir(), key=lambda each: each.name):
        if file.name.endswith(".yaml"):
            recipe = read(file.name, file.read_text(encoding="utf-8"))
            found[recipe.name] = recipe
    return found
