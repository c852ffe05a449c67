"""The learning rate as a function of the step: up, level, and down to zero in a straight line."""

WARMUP_STEPS = 10
COOLDOWN_FRACTION = 0.5  # of all steps


def learning_rate(step: int, *, steps: int, peak: float) -> float:
    """The rate of training step `step`, counted from 0 to `steps` - 1. The last one is small but not zero."""
    rising = (step + 1) / WARMUP_STEPS
    falling = (steps - step) / (COOLDOWN_FRACTION * steps)
    return peak * min(1.0, rising, falling)
