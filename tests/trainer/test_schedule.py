"""What changes over a run, against numbers worked out by hand."""

import pytest

from speedrun_trainer.data import UNITS, Portion
from speedrun_trainer.presets import PRESETS
from speedrun_trainer.schedule import Schedule, Stage

ONE = (Stage(share=1, batch_tokens=800, longest=50, short_window=8, long_window=16),)
THREE = (
    Stage(share=2, batch_tokens=800, longest=50, short_window=8, long_window=16, rate=0.5),
    Stage(share=2, batch_tokens=1600, longest=100, short_window=16, long_window=32, rate=0.75),
    Stage(share=1, batch_tokens=2400, longest=100, short_window=32, long_window=64),
)


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
def test_rate_rises_stays_and_falls_to_zero(step: int, steps: int, expected: float) -> None:
    assert Schedule(steps, ONE, warmup_steps=10, cooldown=0.5).rate(step) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("step", "expected"),
    [(0, 0.5), (39, 0.5), (40, 0.75), (59, 0.75), (60, 0.75), (70, 0.75 * 0.775), (80, 0.55), (99, 0.1 + 0.9 / 40)],
)
def test_rate_follows_the_stages_and_falls_to_a_tenth(step: int, expected: float) -> None:
    assert Schedule(100, THREE, cooldown=0.4, final_rate=0.1).rate(step) == pytest.approx(expected)


@pytest.mark.parametrize(("step", "expected"), [(0, 0.85), (150, 0.9), (300, 0.95), (2000, 0.95)])
def test_momentum_rises(step: int, expected: float) -> None:
    assert Schedule(3000, ONE).momentum(step) == pytest.approx(expected)


def test_stages_share_the_steps() -> None:
    schedule = Schedule(100, THREE)
    assert schedule.ends == (40, 80, 100)
    assert [schedule.stage(step) for step in (0, 39, 40, 79, 80, 99, 100)] == [
        *(THREE[0],) * 2, *(THREE[1],) * 2, *(THREE[2],) * 3,
    ]  # fmt: skip
    assert schedule.first_steps() == {0: THREE[0], 40: THREE[1], 80: THREE[2]}
    assert schedule.portions() == [
        Portion(40 * UNITS, 100, 50),
        Portion(40 * UNITS, 200, 100),
        Portion(20 * UNITS, 300, 100),
    ]
    assert [schedule.units(step) for step in (0, 39, 40, 99)] == [(0, 320), (0, 320), (320, 320), (640, 160)]


@pytest.mark.parametrize(("step", "tokens"), [(0, 0), (1, 800), (40, 32_000), (41, 33_600), (100, 144_000)])
def test_tokens_are_counted(step: int, tokens: int) -> None:
    assert Schedule(100, THREE).tokens_before(step) == tokens


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 2700])
def test_every_step_belongs_to_one_stage(steps: int) -> None:
    schedule = Schedule(steps, THREE)
    assert schedule.ends[-1] == steps
    assert sum(portion.units for portion in schedule.portions()) == steps * UNITS
    assert all(schedule.first_steps()[first] == schedule.stage(first) for first in schedule.first_steps())


def test_ideas_of_optimizer_and_schedule_can_be_left_out() -> None:
    preset = PRESETS["gpt2-small"]
    kinds = {name: rule.kind for name, rule in preset.without("normuon").rules.items()}
    assert kinds["mlp_bank"] == kinds["attention_bank"] == "muon" and kinds["head"] == "adam"
    assert preset.rules["mlp_bank"].kind == "normuon"
    [stage] = preset.without("stages").stages
    assert stage == preset.stages[-1]
    assert Schedule(2700, (stage,)).tokens_before(2700) == 2700 * 393_216


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_presets_fit_together(preset) -> None:  # type: ignore[no-untyped-def]
    """Units of whole tokens, windows that grow, documents that the rotary table covers."""
    for before, after in zip(preset.stages, preset.stages[1:], strict=False):
        assert before.batch_tokens <= after.batch_tokens and before.long_window <= after.long_window
    for stage in preset.stages:
        assert stage.batch_tokens % (UNITS * 128) == 0
        assert stage.longest <= preset.model.positions
    assert preset.val_unit <= preset.model.positions
    assert preset.val_tokens % (UNITS * preset.val_unit) == 0
    assert preset.model.width % preset.model.heads == 0
