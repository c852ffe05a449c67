"""What a remote command prints, and where it may be cut."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

SLURM_DOWN = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n"
Pause = Callable[[], Awaitable[None]]


class Answered(Exception):
    """Nothing follows the answer: of the command, or of an item."""


class Output:
    """What a command has printed so far."""

    def __init__(self, nonce: str) -> None:
        self.stdout = b""
        self.stderr = b""
        self._nonce = nonce

    def say(self, *words: object) -> None:
        self.stdout += f"\n@{self._nonce} {' '.join(map(str, words))}\n".encode()

    def answer(self, *words: object) -> None:
        self.say(*words)
        raise Answered

    def item(self, number: int) -> ItemOutput:
        """Where the answer of one item of a batch goes."""
        return ItemOutput(self, number)

    def print(self, text: str | bytes) -> None:
        self.stdout += text if isinstance(text, bytes) else text.encode()


class ItemOutput:
    """The answer of one item of a batch."""

    def __init__(self, output: Output, number: int) -> None:
        self._output = output
        self._number = number

    def answer(self, *words: object, text: str = "") -> None:
        self._output.say("item", self._number, *words)
        self._output.print(f"{text}\n")
        raise Answered
