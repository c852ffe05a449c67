"""What can be trained: model, schedule and rates of each preset, as data. Command-line options change parts of it."""

from dataclasses import dataclass, replace
from typing import Self

from speedrun_trainer import fp8, model
from speedrun_trainer.model import ModelConfig
from speedrun_trainer.schedule import Stage
from speedrun_trainer.sharding import Rule

IDEAS = (*model.IDEAS, "normuon", "stages")  # the last two: of the optimizer (optim.py) and of the schedule


@dataclass(frozen=True)
class Preset:
    """Everything about a run but the data. `rules` names all of the model's parameters."""

    about: str
    model: ModelConfig  # its vocabulary is replaced by the data's
    stages: tuple[Stage, ...]
    steps: int
    learning_rate: float
    rules: dict[str, Rule]
    warmup_steps: int
    cooldown: float
    final_rate: float
    val_tokens: int
    val_unit: int  # tokens of a portion of validation; documents end at its end
    val_every: int
    most_tokens: int  # through the model at once, of one process
    token_bytes: int  # of GPU memory that a token takes on its way through the model and back; measured on an H200

    @property
    def largest_unit(self) -> int:
        """Tokens of the largest portion that is not divided: what goes through the model at once at the least."""
        return max(self.val_unit, *(stage.unit_tokens for stage in self.stages))

    def without(self, idea: str) -> Self:
        """The same run without one of IDEAS: plain Muon, or the last stage's batch and windows from the start."""
        if idea == "normuon":
            plain = {name: replace(rule, kind="muon") for name, rule in self.rules.items() if rule.kind == "normuon"}
            return replace(self, rules=self.rules | plain)
        if idea == "stages":
            return replace(self, stages=self.stages[-1:])
        return replace(self, model=self.model.without(idea))

    def with_fp8_head(self) -> Self:
        """The same run with the head's products in FP8: one scale for all stages, that of the smallest batch."""
        scale = fp8.gradient_scale(min(stage.batch_tokens for stage in self.stages))
        return replace(self, model=replace(self.model, fp8_gradient_scale=scale))


SMOKE = Preset(
    about="0.1 million parameters, for a CPU: learns a made language of known entropy in half a minute",
    model=ModelConfig(
        vocabulary=16, positions=256, layers=2, width=64, heads=2, long_layers=(1,), value_embeddings=1, soft_cap=15.0
    ),
    stages=(Stage(share=1, batch_tokens=1024, longest=128, short_window=16, long_window=64),),
    steps=500,
    learning_rate=0.01,
    rules={
        "embedding": Rule("adam", 1.0),
        "value_embedding": Rule("adam", 1.0),
        "head": Rule("adam", 1.0),
        "mixing": Rule("adam", 1.0),
        "attention_bank": Rule("normuon", 2.0),
        "mlp_bank": Rule("normuon", 2.0),
    },
    warmup_steps=10,
    cooldown=0.5,
    final_rate=0.0,
    val_tokens=65_536,
    val_unit=256,
    val_every=125,
    most_tokens=2048,
    token_bytes=100_000,
)

GPT2_SMALL = Preset(
    about="GPT-2 small's shape, 12 layers of width 768, on FineWeb: for GPUs with bfloat16 from 40 GB on",
    model=ModelConfig(
        vocabulary=50257,
        positions=32_768,
        layers=12,
        width=768,
        heads=6,
        vocabulary_multiple=128,
        turning=0.5,
        attention_scale=0.12,  # record of 2024-12
        long_layers=(0, 4, 7, 11),
        value_embeddings=3,
        soft_cap=15.0,
    ),
    stages=(
        Stage(share=1 / 3, batch_tokens=131_072, longest=896, short_window=128, long_window=384, rate=0.58),
        Stage(share=1 / 3, batch_tokens=262_144, longest=2048, short_window=384, long_window=896, rate=0.82),
        Stage(share=1 / 3, batch_tokens=393_216, longest=2048, short_window=640, long_window=1408),
    ),
    steps=2700,
    learning_rate=0.008,
    rules={
        "embedding": Rule("adam", 75.0),
        "value_embedding": Rule("adam", 75.0),
        "head": Rule("adam", 1.0),
        "mixing": Rule("adam", 5.0),
        "attention_bank": Rule("normuon", 5.0),
        "mlp_bank": Rule("normuon", 5.0),
    },
    warmup_steps=0,
    cooldown=0.45,
    final_rate=0.1,
    val_tokens=10_485_760,
    val_unit=32_768,
    val_every=250,
    most_tokens=49_152,
    token_bytes=550_000,
)

PRESETS = {"smoke": SMOKE, "gpt2-small": GPT2_SMALL}
