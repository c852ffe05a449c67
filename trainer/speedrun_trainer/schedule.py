"""What changes over a run, as functions of the step: batch, windows, learning rate, momentum. Pure; no torch.

The ideas and where they were established (records of modded-nanogpt unless another source is named):

- batch size that grows in stages, with the rate following its square root: record of 2025-11 ("batch size schedule")
- attention windows that grow with it: record of 2024-11-19 ("FlexAttention", window warm-up)
- level, then linear decay ("trapezoidal"): Hägele et al. 2024, https://arxiv.org/abs/2405.18392; record of 2024-10-29
- momentum of Muon from 0.85 to 0.95 over the first steps: record of 2024-12-04
"""

from dataclasses import dataclass

from speedrun_trainer.data import UNITS, Portion


@dataclass(frozen=True)
class Stage:
    """Part of a run in which shapes stay the same: each is compiled once, before the clock starts."""

    share: float  # of the run's steps
    batch_tokens: int  # a step, of all processes together
    longest: int  # tokens of a document
    short_window: int  # tokens before its own that a token of most layers sees
    long_window: int  # the same in the layers that look far back
    rate: float = 1.0  # of the peak learning rates

    @property
    def unit_tokens(self) -> int:
        return self.batch_tokens // UNITS


@dataclass(frozen=True)
class Schedule:
    """A run of `steps` steps, numbered from 0."""

    steps: int
    stages: tuple[Stage, ...]
    warmup_steps: int = 0  # in which the rate rises in a straight line
    cooldown: float = 0.5  # share of the steps, the last ones, in which it falls in a straight line
    final_rate: float = 0.0  # what it falls towards, as a share of the peak
    momentum_steps: int = 300  # in which Muon's momentum rises from the first to the second of `momenta`
    momenta: tuple[float, float] = (0.85, 0.95)

    @property
    def ends(self) -> tuple[int, ...]:
        """The step after the last one of each stage."""
        total = sum(stage.share for stage in self.stages)
        ends, passed = [], 0.0
        for stage in self.stages:
            passed += stage.share
            ends.append(round(self.steps * passed / total))
        return tuple(ends)

    def stage(self, step: int) -> Stage:
        """The stage of a step; for the step after the last one, which only validates, the last stage."""
        for stage, end in zip(self.stages, self.ends, strict=True):
            if step < end:
                return stage
        return self.stages[-1]

    def first_steps(self) -> dict[int, Stage]:
        """The stages that have steps, by their first."""
        begins = (0, *self.ends[:-1])
        return {begin: stage for begin, end, stage in zip(begins, self.ends, self.stages, strict=True) if begin < end}

    def units(self, step: int) -> tuple[int, int]:
        """The first unit of the stage that a step belongs to, and how many the stage has."""
        begins = (0, *self.ends[:-1])
        begin, end = next((b, e) for b, e in zip(begins, self.ends, strict=True) if b <= step < e)
        return begin * UNITS, (end - begin) * UNITS

    def portions(self) -> list[Portion]:
        """What the run reads."""
        begins = (0, *self.ends[:-1])
        return [
            Portion(units=(end - begin) * UNITS, tokens=stage.unit_tokens, longest=stage.longest)
            for begin, end, stage in zip(begins, self.ends, self.stages, strict=True)
        ]

    def tokens_before(self, step: int) -> int:
        """Tokens trained on by the steps before `step`."""
        begins = (0, *self.ends[:-1])
        return sum(
            max(min(step, end) - begin, 0) * stage.batch_tokens
            for begin, end, stage in zip(begins, self.ends, self.stages, strict=True)
        )

    def rate(self, step: int) -> float:
        """The learning rate of a step as a share of its peak. The last one is small but not zero."""
        rising = (step + 1) / self.warmup_steps if self.warmup_steps else 1.0
        left = (self.steps - step) / (self.cooldown * self.steps) if self.cooldown else 1.0
        falling = self.final_rate + (1 - self.final_rate) * min(1.0, left)
        return self.stage(step).rate * min(1.0, rising, falling)

    def momentum(self, step: int) -> float:
        low, high = self.momenta
        return low + (high - low) * min(1.0, step / self.momentum_steps) if self.momentum_steps else high
