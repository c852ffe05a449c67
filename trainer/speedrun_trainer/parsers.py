"""Command-line parsers that answer a bad value with one line and exit code 2. No torch: data commands start at once."""

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

DEFAULT_FOLDER = Path("data/synthetic")
LARGEST_RATE = 1e30  # absurd, and still a float32 when the optimizer has scaled it


class Help(argparse.RawDescriptionHelpFormatter):
    """Descriptions as written, and each option's default behind its help, where it is no preset's."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        told = action.help and action.default not in (None, False, argparse.SUPPRESS, [])
        return f"{action.help} (default: %(default)s)" if told else action.help


class Parser(argparse.ArgumentParser):
    """Complains in one line; the usage is what --help is for."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"formatter_class": Help} | settings)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (--help lists the options)\n")


LARGEST_WHOLE = 2**63 - 1  # the sum of two is still a seed for torch


def whole(minimum: int) -> Callable[[str], int]:
    """An argument type: a whole number from `minimum` up to LARGEST_WHOLE."""

    def convert(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = minimum - 1
        if number < minimum:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {minimum} up")
        if number > LARGEST_WHOLE:
            raise argparse.ArgumentTypeError(f"{text!r} is more than {LARGEST_WHOLE}")
        return number

    return convert


def number(highest: float) -> Callable[[str], float]:
    """An argument type: a number from 0 to `highest`."""

    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 <= value <= highest:  # also false for nan
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to {highest}")
        return value

    return convert
