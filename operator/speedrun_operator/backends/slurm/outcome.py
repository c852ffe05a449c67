"""What a submission's answer means: accepted, rejected, busy or unknown, in words that a person can act on. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from speedrun_operator.api.phases import Reason
from speedrun_operator.backends.slurm.commands import CLAIM_SECONDS, Section
from speedrun_operator.backends.slurm.queue import epoch, number
from speedrun_operator.lifecycle.observation import (
    Accepted,
    Busy,
    Outcome,
    PrepareOutcome,
    Ready,
    Rejected,
    Underway,
    Unknown,
)
from speedrun_operator.preparation.manifest import read_manifest
from speedrun_operator.preparation.storage import gib

TEXT_LIMIT = 500
BUSY = Busy("SlurmBusy", "Slurm could not take another job; this one is submitted a little later")


def read_outcome(words: Sequence[str], stderr: str) -> Outcome | None:
    """`words`: the answer's, empty where there was none. `stderr`: what Slurm's programs printed.

    None for one that was not begun and is to be sent again.
    """
    match list(words):
        case ["accepted", job_id, *at] if number(job_id) is not None:
            return Accepted(job_id, epoch(at[0]) if at else None)
        case ["later"]:
            return None
        case ["rejected"]:
            return Rejected(Reason.SUBMISSION_REJECTED.value, f"sbatch refused the job: {last_lines(stderr)}")
        case ["elsewhere", job_id, ending, *cluster]:
            return Rejected(Reason.SUBMISSION_REJECTED.value, _elsewhere(job_id, ending, " ".join(cluster), stderr))
        case ["cancelled"]:
            return Rejected(Reason.CANCELLED.value, "it was cancelled before it was submitted")
        case ["busy"]:
            return Busy("SlurmBusy", f"sbatch could not take the job now: {last_lines(stderr)}")
        case ["unasked"]:
            message = f"squeue failed, so nothing was submitted: {last_lines(stderr)}"
            return Busy("SlurmUnreachable", message, reachable=False)
        case ["storage"]:
            return Busy("StorageUnwritable", f"the ledger's directory cannot be written: {last_lines(stderr)}")
        case ["claimed", age]:
            left = max(0, CLAIM_SECONDS - (number(age) or 0))
            message = f"the outcome of an earlier submission is not known yet; it is looked up for another {left} s"
            return Unknown("SubmissionUnknown", message)
        case ["unaccounted"]:
            message = f"an earlier submission left no trace but perhaps in sacct, which failed: {last_lines(stderr)}"
            return Unknown("SubmissionUnknown", message)
        case ["damaged"]:
            message = f"the ledger's owner is no job's number, so that no job can take it: {last_lines(stderr)}"
            return Unknown("SubmissionUnknown", message)
        case ["unknown", *_]:
            return Unknown("SubmissionUnknown", f"sbatch did not say whether it took the job: {last_lines(stderr)}")
        case _:
            return Unknown("AnswerIncomplete", "the submission's answer was not whole; it is looked up")


def _elsewhere(job_id: str, ending: str, cluster: str, stderr: str) -> str:
    ended = (
        "it was cancelled" if ending == "cancelled" else f"scancel -M {cluster} {job_id} failed: {last_lines(stderr)}"
    )
    return (
        f"sbatch gave job {job_id} to cluster {cluster}, whose queue this login does not show; {ended}. "
        "Give login.host a login node of that cluster, or have the site's sbatch keep jobs on this one"
    )


def read_preparation(sections: Sequence[Section], stderr: str) -> PrepareOutcome:
    """`sections`: the answer's, empty where there was none."""
    attempt: int | None = None
    broken: str | None = None
    outcome: PrepareOutcome | Accepted = Unknown("AnswerIncomplete", "the answer was not whole; it is asked again")
    for section in sections:
        match section.words:
            case ("ready",):
                return Ready(read_manifest(section.body.decode(errors="replace")))
            case ("broken", *why):
                broken = " ".join(why)
            case ("full", free, needed, size):
                return _full(free, needed, size)
            case ("attempt", text):
                attempt = number(text)
            case ("item", "0", *words):
                text = section.body.decode(errors="replace").strip() or stderr
                outcome = read_outcome(words, text) or BUSY
    if not isinstance(outcome, Accepted):
        return outcome
    if attempt is None:
        return Unknown("AnswerIncomplete", "the answer was not whole; it is asked again")
    return Underway(attempt, outcome.job_id, outcome.submitted, broken)


def _full(free: str, needed: str, size: str) -> Busy:
    """Sizes in KiB."""
    free_, needed_, size_ = (gib((number(each) or 0) * 1024) for each in (free, needed, size))
    message = (
        f"{free_} of {size_} are free below slurm.root, and {needed_} may be needed: "
        "`speedrun-operator cache prune` makes room"
    )
    return Busy(Reason.STORAGE_FULL.value, message)


def last_lines(text: str) -> str:
    """The last three lines that say something, as one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "; ".join(lines[-3:])[:TEXT_LIMIT] or "it printed no reason"
