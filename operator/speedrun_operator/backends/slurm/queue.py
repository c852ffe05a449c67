"""What Slurm's programs print, read into rows; and what their words mean. Pure.

Formats are explicit and delimited, free text stands last, and rows that are not ours are dropped by name. State words
are those of squeue and sacct (https://slurm.schedmd.com/job_state_codes.html), long or short, with sacct's decorations
(`CANCELLED by 1001`, `CANCELLED+`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from speedrun_operator.api.phases import Reason
from speedrun_operator.backends.base import MarkedJob, PrepareJob
from speedrun_operator.lifecycle.observation import JobState
from speedrun_operator.preparation.storage import Storage

SQUEUE_FORMAT = "%i|%T|%V|%S|%e|%N|%j|%r"
MARKED_FORMAT = "%i|%j|%k"
SACCT_FIELDS = "JobIDRaw,State,Submit,Start,End,NodeList,JobName"
NO_NODE_FITS = "BadConstraints"
NODES_DOWN = "Nodes required for job are DOWN"  # squeue's words for a reason that it does not name
ACCOUNTING_OFF = "Slurm accounting storage is disabled"

_SHORT = {
    "BF": "BOOT_FAIL", "CA": "CANCELLED", "CD": "COMPLETED", "CF": "CONFIGURING", "CG": "COMPLETING",
    "DL": "DEADLINE", "F": "FAILED", "NF": "NODE_FAIL", "OOM": "OUT_OF_MEMORY", "PD": "PENDING", "PR": "PREEMPTED",
    "R": "RUNNING", "RD": "RESV_DEL_HOLD", "RF": "REQUEUE_FED", "RH": "REQUEUE_HOLD", "RQ": "REQUEUED",
    "RS": "RESIZING", "RV": "REVOKED", "SI": "SIGNALING", "SE": "SPECIAL_EXIT", "SO": "STAGE_OUT", "ST": "STOPPED",
    "S": "SUSPENDED", "TO": "TIMEOUT",
}  # fmt: skip

_QUEUED = frozenset({
    "PENDING", "CONFIGURING", "POWER_UP_NODE", "REQUEUED", "REQUEUE_FED", "RESV_DEL_HOLD", "REQUEUE_HOLD",
    "SPECIAL_EXIT",
})  # fmt: skip

# COMPLETING comes before an end, and before a requeue, too. REVOKED: another cluster of the federation has started it.
_RUNNING = frozenset({
    "RUNNING", "COMPLETING", "RESIZING", "REVOKED", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED", "UPDATE_DB",
})  # fmt: skip

_ENDED: Mapping[str, Reason] = {
    "COMPLETED": Reason.COMPLETED,
    "FAILED": Reason.JOB_FAILED,
    "CANCELLED": Reason.CANCELLED,
    "TIMEOUT": Reason.TIME_LIMIT,
    "DEADLINE": Reason.TIME_LIMIT,
    "OUT_OF_MEMORY": Reason.OUT_OF_MEMORY,
    "NODE_FAIL": Reason.NODE_FAILURE,
    "BOOT_FAIL": Reason.NODE_FAILURE,
    "PREEMPTED": Reason.PREEMPTED,
    "LAUNCH_FAILED": Reason.LAUNCH_FAILED,
    "RECONFIG_FAIL": Reason.LAUNCH_FAILED,
}

SAY_TIME_LIMIT = "the job reached its time limit"
_SAY_ENDED: Mapping[Reason, str] = {
    Reason.CANCELLED: "the job was cancelled",
    Reason.TIME_LIMIT: SAY_TIME_LIMIT,
    Reason.OUT_OF_MEMORY: "the job used more memory than it was given",
    Reason.NODE_FAILURE: "the node failed",
    Reason.PREEMPTED: "the job was preempted",
    Reason.LAUNCH_FAILED: "Slurm could not launch the job",
    Reason.JOB_FAILED: "the job's script failed",
}


def state_word(text: str) -> str:
    """`CANCELLED by 1001` → CANCELLED; `R` → RUNNING; `COMPLETED+` → COMPLETED."""
    word = text.split()[0].rstrip("+*").upper() if text.split() else ""
    return _SHORT.get(word, word)


@dataclass(frozen=True, slots=True)
class Row:
    """One job as squeue or sacct shows it. Times are by the controller's clock; None where there is none.

    `reason` is squeue's word for why it waits, or did; `cancelled_by` the user id that sacct gives.
    """

    job_id: str
    word: str
    submitted: datetime | None
    started: datetime | None
    ended: datetime | None
    node: str | None
    name: str
    reason: str | None = None
    cancelled_by: str | None = None

    @property
    def state(self) -> JobState:
        """COMPLETING and words nobody knows are not an end: a later look will tell."""
        if self.word in _ENDED:
            return JobState.ENDED
        queued = self.word in _QUEUED or (self.word not in _RUNNING and self.node is None)
        return JobState.QUEUED if queued else JobState.RUNNING

    @property
    def why(self) -> tuple[str | None, str | None]:
        """Reason and message, for a person: why it waits, or why it ended."""
        if self.state is not JobState.ENDED:
            return self.reason if self.state is JobState.QUEUED else None, None
        if self.reason == NO_NODE_FITS and self.node is None:
            return Reason.SUBMISSION_REJECTED.value, "Slurm has no node that fits what the job asks for"
        reason = _ENDED[self.word]
        message = _SAY_ENDED.get(reason)
        if self.cancelled_by is not None:
            message = f"{message} by user id {self.cancelled_by}"
        return reason.value, message


def number(text: str) -> int | None:
    """A plain whole number of at most 18 digits; None for anything else."""
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


def epoch(text: str) -> datetime | None:
    """Seconds since the epoch as printed with SLURM_TIME_FORMAT=%s; None for `N/A`, `Unknown`, `None`, 0."""
    return datetime.fromtimestamp(int(text), UTC) if re.fullmatch(r"[1-9][0-9]{0,10}", text) else None


def read_storage(words: Sequence[str]) -> Storage | None:
    """`SIZE USED FREE` in KiB."""
    numbers = [number(word) for word in words]
    if len(numbers) != 3:
        return None
    size, used, free = numbers
    if size is None or used is None or free is None:
        return None
    return Storage(size * 1024, used * 1024, free * 1024)


def parse_squeue(text: str, prefix: str | tuple[str, ...]) -> list[Row]:
    """Rows of SQUEUE_FORMAT whose job name begins with `prefix`; anything else on stdout is left out."""
    rows = []
    for line in text.split("\n"):
        fields = line.split("|", 7)
        if len(fields) == 8 and fields[6].startswith(prefix):
            rows += _row(*fields[:7], reason=fields[7])
    return rows


def parse_sacct(text: str, names: Iterable[str]) -> list[Row]:
    """Rows of SACCT_FIELDS (`-n -P`) with exactly one of `names`."""
    wanted = set(names)
    rows = []
    for line in text.split("\n"):
        fields = line.split("|", 6)
        if len(fields) == 7 and fields[6] in wanted:
            rows += _row(*fields)
    return rows


def _row(
    job_id: str, state: str, submitted: str, started: str, ended: str, nodes: str, name: str, *, reason: str = ""
) -> list[Row]:
    """The row, or none: an array's id is no plain number, and we submit no arrays."""
    if number(job_id) is None:
        return []
    word = state_word(state)
    by = re.fullmatch(r"CANCELLED by ([0-9]+)", state.strip())
    node = nodes if nodes not in ("", "(null)", "None assigned") else None
    queued, finished = word in _QUEUED, word in _ENDED
    reason = reason.strip().removeprefix("(").removesuffix(")")
    reason = "ReqNodeNotAvail" if reason.startswith(NODES_DOWN) else reason
    row = Row(
        job_id=job_id,
        word=word,
        submitted=epoch(submitted),
        # Of a job that waits, or completes to be requeued, it is a forecast; of one that was cancelled before it
        # ran, the time of that.
        started=epoch(started) if node and not queued and word != "COMPLETING" else None,
        ended=epoch(ended) if finished else None,  # before, it is the time limit
        node=node,
        name=name,
        reason=reason if reason not in ("", "None") else None,
        cancelled_by=by[1] if by else None,
    )
    return [row]


def parse_preparing(text: str, prefix: str) -> list[PrepareJob]:
    """Rows of MARKED_FORMAT whose name begins with `prefix`, that of the jobs that prepare."""
    found = []
    for line in text.split("\n"):
        fields = line.split("|", 2)
        if len(fields) != 3 or number(fields[0]) is None:
            continue
        name = re.fullmatch(rf"{re.escape(prefix)}([0-9a-f]{{16}})-[0-9]+", fields[1])
        comment = re.fullmatch(r"speedrun-prepare ([a-z0-9-]+)", fields[2])
        if name and comment:
            found.append(PrepareJob(name=fields[1], id=fields[0], key=name[1], scope=comment[1]))
    return found


def parse_marked(text: str, prefix: str) -> list[MarkedJob]:
    """Rows of MARKED_FORMAT whose name begins with `prefix` and whose comment says their namespace."""
    found = []
    for line in text.split("\n"):
        fields = line.split("|", 2)
        if len(fields) != 3 or number(fields[0]) is None:
            continue
        name = re.fullmatch(rf"{re.escape(prefix)}([0-9a-f-]{{36}})-[0-9]+", fields[1])
        comment = re.fullmatch(r"speedrun ([a-z0-9-]+)/[a-z0-9.-]+", fields[2])
        if name and comment:
            found.append(MarkedJob(name=fields[1], id=fields[0], uid=name[1], namespace=comment[1]))
    return found
