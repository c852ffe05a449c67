"""Command lines: the options of a training run, and parsers that answer a bad value with one line and exit code 2."""

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

DEFAULT_FOLDER = Path("data/synthetic")
LARGEST_RATE = 1e30  # absurd, and still a float32 when the optimizer has scaled it


class Help(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """Descriptions as written, and each option's default behind its help."""


class Parser(argparse.ArgumentParser):
    """Complains in one line; the usage is what --help is for."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"formatter_class": Help} | settings)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (--help lists the options)\n")


def whole(minimum: int) -> Callable[[str], int]:
    """An argument type: a whole number from `minimum` up."""

    def convert(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = minimum - 1
        if number < minimum:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {minimum} up")
        return number

    return convert


def rate(text: str) -> float:
    """An argument type: a learning rate."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number <= LARGEST_RATE:  # also false for nan
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to {LARGEST_RATE}")
    return number


def train_parser(description: str) -> Parser:
    parser = Parser(prog="speedrun_trainer.train", description=description)
    add = parser.add_argument_group("data").add_argument
    add("--data", type=Path, default=DEFAULT_FOLDER, metavar="FOLDER", help="folder of the token shards")
    add("--val-tokens", type=whole(1), default=65_536, metavar="N", help="of the validation shard, always the first")
    add = parser.add_argument_group("batch").add_argument
    add("--sequences", type=whole(1), default=32, metavar="N", help="sequences a step, of all processes together")
    add("--sequence-length", type=whole(2), default=64, metavar="N", help="tokens a sequence")
    add = parser.add_argument_group("run").add_argument
    add("--steps", type=whole(1), default=500, metavar="N", help="training steps")
    add("--learning-rate", type=rate, default=0.01, metavar="X", help="peak of the schedule; 0 learns nothing")
    add("--seed", type=whole(0), default=0, metavar="N", help="of the initial weights; the data's order is fixed")
    add("--val-every", type=whole(0), default=125, metavar="N", help="steps between validations; 0: only at the end")
    add("--warmup-steps", type=whole(0), default=3, metavar="N", help="steps before the clock starts, undone again")
    add("--threads", type=whole(1), default=1, metavar="N", help="CPU threads a process; may change the last digits")
    return parser


def parse_train(arguments: Sequence[str] | None, *, description: str, world: int) -> argparse.Namespace:
    """The options of a run on `world` processes; ends the process with code 2 if they do not fit together."""
    parser = train_parser(description)
    options = parser.parse_args(arguments)
    if options.sequences % world:
        parser.error(
            f"--sequences {options.sequences} cannot be shared by {world} processes: take a multiple of {world}"
        )
    batch = options.sequences * options.sequence_length
    if options.val_tokens % batch:
        parser.error(f"--val-tokens {options.val_tokens} is not a multiple of the {batch} tokens of a batch")
    return options
