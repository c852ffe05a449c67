"""The options of a training run, and the preset that they make."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from speedrun_trainer.attention import NAMES
from speedrun_trainer.data import UNITS
from speedrun_trainer.parsers import DEFAULT_FOLDER, LARGEST_RATE, Parser, number, whole
from speedrun_trainer.presets import IDEAS, PRESETS


def of_presets(field: str) -> str:
    """The presets' own values of an option, for its help."""
    return "default: " + ", ".join(f"{getattr(preset, field)} for {name}" for name, preset in PRESETS.items())


def train_parser(description: str) -> Parser:
    presets = "\n".join(f"  {name:<12} {preset.about}" for name, preset in PRESETS.items())
    parser = Parser(prog="speedrun_trainer.train", description=f"{description}\nPresets:\n{presets}")
    add = parser.add_argument_group("what is trained").add_argument
    add("--preset", choices=PRESETS, default="smoke", help="model, schedule and rates")
    add("--steps", type=whole(1), metavar="N", help=f"training steps ({of_presets('steps')})")
    add(
        "--learning-rate",
        type=number(LARGEST_RATE),
        metavar="X",
        help=f"scales all rates ({of_presets('learning_rate')})",
    )
    add("--without", action="append", default=[], choices=IDEAS, metavar="IDEA", help=f"leave out {', '.join(IDEAS)}")
    add("--fp8", choices=("none", "head"), default="none", help="products in FP8: of the head; emulated on a CPU")
    add("--seed", type=whole(0), default=0, metavar="N", help="of the initial weights; the data's order is fixed")
    # Not --run: torchrun takes that for its own, also behind the module's name.
    add("--run-number", type=whole(0), default=0, metavar="R", help="of a series, from 0: the run's seed is seed + R")
    add = parser.add_argument_group("data").add_argument
    add("--data", type=Path, default=DEFAULT_FOLDER, metavar="FOLDER", help="folder of the token shards")
    add("--val-tokens", type=whole(1), metavar="N", help=f"always the shard's first ({of_presets('val_tokens')})")
    add("--val-every", type=whole(0), metavar="N", help=f"0: only at the end ({of_presets('val_every')})")
    add("--stop-at-target", type=number(1e9), metavar="LOSS", help="end at the first validation that is not above it")
    add = parser.add_argument_group("where it runs").add_argument
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto takes GPUs where there are some")
    add("--attention", choices=("auto", *NAMES), default="auto", help="kernel; auto takes the fastest that runs here")
    add("--compile", choices=("auto", "yes", "no"), default="auto", help="torch.compile; auto: on GPUs")
    add(
        "--micro-tokens",
        type=whole(1),
        metavar="N",
        help=f"most at once in a process ({of_presets('most_tokens')}; at least {of_presets('largest_unit')[9:]})",
    )
    add("--warmup-steps", type=whole(0), default=3, metavar="N", help="a stage, before the clock starts; undone again")
    add("--threads", type=whole(1), default=1, metavar="N", help="CPU threads a process; may change the last digits")
    add("--deterministic", action="store_true", help="only kernels that repeat bit for bit; slower on a GPU")
    add = parser.add_argument_group("what is kept").add_argument
    add("--metrics", type=Path, metavar="FILE", help="append a line of JSON for each step and validation")
    add("--weights", type=Path, metavar="FILE", help="write the trained weights (safetensors)")
    add("--checkpoint", type=Path, metavar="FOLDER", help="go on from the checkpoint in it; on SIGTERM save one there")
    add("--save-every", type=whole(0), default=0, metavar="N", help="steps between checkpoints; 0: on SIGTERM only")
    return parser


def parse_train(arguments: Sequence[str] | None, *, description: str) -> argparse.Namespace:
    """The options of a run; `preset` is the Preset that they make. Ends the process with code 2 if they do not fit."""
    parser = train_parser(description)
    options = parser.parse_args(arguments)
    preset = PRESETS[options.preset]
    given = {
        "steps": options.steps,
        "learning_rate": options.learning_rate,
        "val_tokens": options.val_tokens,
        "val_every": options.val_every,
        "most_tokens": options.micro_tokens,
    }
    preset = replace(preset, **{name: value for name, value in given.items() if value is not None})
    for idea in options.without:
        preset = preset.without(idea)
    if options.fp8 == "head":
        preset = preset.with_fp8_head()
    portion = UNITS * preset.val_unit
    if preset.val_tokens % portion:
        parser.error(f"--val-tokens {preset.val_tokens} is not a multiple of {portion}")
    if preset.most_tokens < preset.largest_unit:
        unit = preset.largest_unit
        parser.error(f"--micro-tokens {preset.most_tokens}: the smallest portion is a unit of {unit} tokens")
    if options.save_every and not options.checkpoint:
        parser.error("--save-every needs --checkpoint FOLDER")
    options.preset_name, options.preset = options.preset, preset
    return options
