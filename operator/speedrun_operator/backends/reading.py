"""A log read in pieces: how far, and what it says so far. Pure, and the same for every backend."""

from __future__ import annotations

from dataclasses import dataclass, field

from speedrun_operator.diagnosis import sign_of
from speedrun_operator.progress import ParserState, feed
from speedrun_operator.progress.allocation import AllocationProgress, add


@dataclass(frozen=True, slots=True)
class Reading:
    """One allocation's log up to byte `offset`. A log that shrank is another one: read it with a new Reading."""

    log_format: str
    offset: int = 0
    progress: AllocationProgress = field(default_factory=AllocationProgress)
    parser: ParserState | None = field(default=None, repr=False)

    def after(self, data: bytes) -> Reading:
        """With the bytes that follow."""
        parser, records = feed(self.parser or ParserState(self.log_format), data, sign_of)
        progress = self.progress
        for record in records:
            progress = add(progress, record)
        return Reading(self.log_format, self.offset + len(data), progress, parser)
