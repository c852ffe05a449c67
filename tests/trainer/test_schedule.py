"""The learning rate, against numbers worked out by hand."""

import pytest

from speedrun_trainer.schedule import learning_rate


@pytest.mark.parametrize(
    ("step", "steps", "expected"),
    [
        (0, 500, 0.1),
        (4, 500, 0.5),
        (9, 500, 1.0),
        (249, 500, 1.0),
        (250, 500, 1.0),
        (251, 500, 0.996),
        (375, 500, 0.5),
        (499, 500, 0.004),
        (0, 1, 0.1),
        (9, 10, 0.2),
    ],
)
def test_table(step: int, steps: int, expected: float) -> None:
    assert learning_rate(step, steps=steps, peak=1.0) == pytest.approx(expected)
    assert learning_rate(step, steps=steps, peak=0.0) == 0.0
