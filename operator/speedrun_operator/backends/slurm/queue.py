"""What Slurm's programs print, read into rows; and what their words mean. Pure.

Formats are explicit and delimited, free text stands last, and rows that are not ours are dropped by name. State words
are those of squeue and sacct (https://slurm.schedmd.com/job_state_codes.html), long or short, with sacct's decorations
(`CANCELLED by 1001`, `CANCELLED+`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from speedrun_operator.api.phases import Reason
from speedrun_operator.lifecycle.observation import JobState

SQUEUE_FORMAT = "%i|%T|%V|%S|%N|%j|%r"
SACCT_FIELDS = "JobIDRaw,State,Submit,Start,End,NodeList,JobName"

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
    "REVOKED": Reason.CANCELLED,
    "LAUNCH_FAILED": Reason.LAUNCH_FAILED,
    "RECONFIG_FAIL": Reason.LAUNCH_FAILED,
}

SAY_ENDED: Mapping[Reason, str] = {
    Reason.CANCELLED: "the job was cancelled",
    Reason.TIME_LIMIT: "the job reached its time limit; raise spec.timeLimitSeconds",
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


def job_state(word: str) -> JobState:
    """What a state word means. COMPLETING and words nobody knows are not an end: a later look will tell."""
    if word in _QUEUED:
        return JobState.QUEUED
    return JobState.ENDED if word in _ENDED else JobState.RUNNING


def end_reason(word: str) -> Reason:
    return _ENDED[word]


@dataclass(frozen=True, slots=True)
class Row:
    """One job as squeue or sacct shows it. Times are by the controller's clock; None where there is none."""

    job_id: str
    word: str
    submitted: datetime | None
    started: datetime | None
    ended: datetime | None
    node: str | None
    name: str
    waits_for: str | None = None

    @property
    def state(self) -> JobState:
        return job_state(self.word)


def epoch(text: str) -> datetime | None:
    """Seconds since the epoch as printed with SLURM_TIME_FORMAT=%s; None for `N/A`, `Unknown`, `None`, 0."""
    return datetime.fromtimestamp(int(text), UTC) if re.fullmatch(r"[1-9][0-9]{0,11}", text) else None


def parse_squeue(text: str, prefix: str) -> list[Row]:
    """Rows of SQUEUE_FORMAT whose job name begins with `prefix`; anything else on stdout is left out."""
    rows = []
    for line in text.splitlines():
        fields = line.split("|", 6)
        if len(fields) != 7 or not re.fullmatch(r"[0-9]+", fields[0]) or not fields[5].startswith(prefix):
            continue
        word = state_word(fields[1])
        started = epoch(fields[3]) if job_state(word) is not JobState.QUEUED else None
        waits = fields[6].strip("() ") if job_state(word) is JobState.QUEUED else ""
        rows.append(
            Row(
                job_id=fields[0],
                word=word,
                submitted=epoch(fields[2]),
                started=started,
                ended=None,
                node=fields[4] or None,
                name=fields[5],
                waits_for=waits if waits not in ("", "None") else None,
            )
        )
    return rows


def parse_sacct(text: str, names: Iterable[str]) -> list[Row]:
    """Rows of SACCT_FIELDS (`-n -P`) with exactly one of `names`."""
    wanted = set(names)
    rows = []
    for line in text.splitlines():
        fields = line.split("|", 6)
        if len(fields) != 7 or not re.fullmatch(r"[0-9]+", fields[0]) or fields[6] not in wanted:
            continue
        node = fields[5] if fields[5] not in ("", "None assigned") else None
        rows.append(
            Row(fields[0], state_word(fields[1]), epoch(fields[2]), epoch(fields[3]), epoch(fields[4]), node, fields[6])
        )
    return rows


# Texts of sbatch's refusals (Slurm's src/common/slurm_errno.c), by what they prove. What is on neither list proves
# nothing.
REJECTED = (
    "Invalid partition name specified",
    "Invalid account or account/partition combination specified",
    "Invalid qos specification",
    "Requested time limit is invalid",
    "Node count specification invalid",
    "Requested node configuration is not available",
    "Invalid generic resource (gres) specification",
    "Invalid feature specification",
    "Invalid node name specified",
    "More processors requested than permitted",
    "Memory required by task is not available",
    "Job violates accounting/QOS policy",
    "User's group not permitted to use this partition",
    "Access/permission denied",
    "Invalid user id",
    "Requested reservation is invalid",
    "Reservation is invalid",
    "Access denied to requested reservation",
    "Pathname of a file, directory or other parameter too long",
    "does not look like a batch script",
    "Batch script is empty",
    "unrecognized option",
    "Invalid --",
    "invalid option",
)
BUSY = (
    "Required partition not available (inactive or drain)",
    "Rate limit exceeded",
    "MaxJobCount limit reached",
    "Unable to contact slurm controller (connect failure)",
    "Slurm backup controller in standby mode",
    "Unable to process configuration file",
    "command not found",
)
