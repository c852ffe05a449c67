"""Polls' answers, made of what squeue, sacct and the ledgers say."""

from __future__ import annotations

from speedrun_operator.backends.reading import Reading
from speedrun_operator.backends.slurm.answer import Poll, read_poll
from speedrun_operator.backends.slurm.commands import Section
from speedrun_operator.backends.slurm.ledger import Memory, absorb
from speedrun_operator.lifecycle.observation import Observed
from unit.builders import finished_log

PREFIX = "sr-c1c1c1c1-"
NAME = f"{PREFIX}uid-0"
NOW = 1782900600
OFF = "Slurm accounting storage is disabled"
NEW = Memory(Reading("modded-nanogpt"))
LOG = finished_log("3.2790").text
UNFINISHED = LOG[: LOG.index(b"SPEEDRUN run=0 stage=train end")]


def section(words: str, body: str | bytes = b"") -> Section:
    return Section(tuple(words.split()), body if isinstance(body, bytes) else body.encode())


def queued(job: int, state: str = "PENDING", *, submitted: int = 100, reason: str = "None") -> str:
    """A row of squeue; times in seconds."""
    node, started, ended = "", "N/A", "N/A"
    if state not in ("PENDING", "CANCELLED"):
        node, started = "node-a", "200"
    if state not in ("PENDING", "RUNNING", "COMPLETING"):
        started, ended = started if node else "300", "300"
    return f"{job}|{state}|{submitted}|{started}|{ended}|{node}|{NAME}|{reason}\n"


def accounted(job: int, state: str, *, submitted: int = 100) -> str:
    """A row of sacct."""
    return f"{job}|{state}|{submitted}|200|300|node-a|{NAME}\n"


def poll(
    squeue: str | None = "",
    sacct: str | None = None,
    *,
    sacct_code: int = 0,
    owner: str | None = None,
    marker: str | None = None,
    log: tuple[int, bytes] | None = None,
    size: int | None = None,
) -> Poll:
    """The answer to a poll. `squeue` None: it failed. `sacct` None: it was not asked. `log`: offset and bytes."""
    sections = [section(f"now {NOW}")]
    sections.append(section("squeue 1") if squeue is None else section("squeue 0", squeue))
    if owner is not None:
        sections.append(section(f"owner {NAME} {owner}"))
    if marker is not None:
        sections.append(section(f"exit {NAME} {marker}"))
    if sacct is not None:
        sections.append(section(f"sacct {sacct_code}", sacct))
    if log is not None:
        offset, data = log
        sections.append(section(f"log {NAME} {offset + len(data) if size is None else size} {offset}", data))
    answer = read_poll([*sections, section("done")], PREFIX, [NAME])
    assert answer is not None
    return answer


def see(answer: Poll, memory: Memory = NEW, at: float = 0) -> Observed:
    return absorb(memory, answer, NAME, at)[1]
