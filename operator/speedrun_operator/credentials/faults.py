"""What is wrong with a credential. No message ever holds a secret."""

from __future__ import annotations


class AccessError(Exception):
    """No usable credential. The message names the source that was tried and what to do.

    `passing`: it may heal by itself (a server that does not answer); else somebody has to change something.
    `retry_after`: seconds that whoever was asked wants to be left alone, if it said so.
    """

    def __init__(self, message: str, *, passing: bool = False, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.passing = passing
        self.retry_after = retry_after
