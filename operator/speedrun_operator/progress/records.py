"""What a log can say: one frozen record for each kind of line that matters.

Records carry facts of one line and no opinion; what they add up to is `fold`'s job. Times are whole milliseconds,
memory is MiB.
"""

from dataclasses import dataclass
from decimal import Decimal

from speedrun_operator.progress.stages import Marker

Extras = tuple[tuple[str, str], ...]
"""Further `key:value` fields of a line in their order, as printed."""


@dataclass(frozen=True, slots=True)
class StepLine:
    """A training step was done. `step_avg_ms` is None where the log says `nan` (untimed first steps)."""

    step: int
    total_steps: int
    train_time_ms: int
    step_avg_ms: float | None
    extras: Extras = ()


@dataclass(frozen=True, slots=True)
class Validation:
    """A validation loss. `val_loss` is None when it is nan or infinite: `text` holds what was printed."""

    step: int
    total_steps: int
    val_loss: Decimal | None
    text: str
    train_time_ms: int
    step_avg_ms: float | None
    extras: Extras = ()

    @property
    def is_final(self) -> bool:
        """Whether it is a run's result: only the validation after the last step is."""
        return self.step == self.total_steps

    @property
    def is_diverged(self) -> bool:
        """Whether the loss is no number."""
        return self.val_loss is None


@dataclass(frozen=True, slots=True)
class Compiling:
    """The model is being compiled and warmed up; the clock of the record does not run."""


@dataclass(frozen=True, slots=True)
class WarmupEnd:
    """The weights were reset after the warm-up: training starts."""


@dataclass(frozen=True, slots=True)
class Environment:
    """One line about versions; what the line does not say is None, and so is `cuda` of a build without it."""

    python: str | None = None
    torch: str | None = None
    cuda: str | None = None
    triton: str | None = None


@dataclass(frozen=True, slots=True)
class PeakMemory:
    """Highest GPU memory of rank 0; old logs do not say what was reserved."""

    allocated_mib: int
    reserved_mib: int | None


@dataclass(frozen=True, slots=True)
class LogPath:
    """Where the trainer writes its own log, relative to its working directory."""

    path: str


@dataclass(frozen=True, slots=True)
class NewRun:
    """What follows belongs to another run than what came before: the step went back, or a program started again."""


@dataclass(frozen=True, slots=True)
class Symptom:
    """A line that is a sign of trouble: the reason that whoever looks for signs gives it, and nothing of its text."""

    reason: str


Record = StepLine | Validation | Compiling | WarmupEnd | Environment | PeakMemory | LogPath | NewRun | Symptom | Marker
