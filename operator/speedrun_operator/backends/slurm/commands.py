"""The remote commands, made from `remote`'s text, and the reading of what they print. Pure.

Each is one command: submit (look up all, then for each: claim, sbatch, record), poll (queue, ledgers, accounting and
tails of logs, all allocations at once), cancel.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from speedrun_operator.api.names import JOB_PREFIX
from speedrun_operator.backends import cache_text
from speedrun_operator.backends.slurm import ask_text, refusals, remote, storage_text
from speedrun_operator.backends.slurm.parts import bash_path
from speedrun_operator.backends.slurm.prepare import PREPARE_PREFIX, attempts
from speedrun_operator.backends.slurm.queue import ACCOUNTING_OFF, MARKED_FORMAT, SACCT_FIELDS, SQUEUE_FORMAT
from speedrun_operator.backends.slurm.script import LOG, OWN_LINES, PACKAGE, SCRIPT
from speedrun_operator.preparation.manifest import MANIFEST
from speedrun_operator.preparation.needs import Need

CLAIM_SECONDS = 300  # a claim without a job stands for so long; sbatch itself retries for about 150 s
BATCH_SECONDS = 60  # after so long a command begins no further submission
LOG_BYTES = 64 * 1024
MOST_LOG_BYTES = 512 * 1024  # more at once would hold the event loop up while it is parsed
POLL_BYTES = 4 * 1024 * 1024
SACCT_NAMES = 1000  # Linux takes 128 KiB in one argument
SKEW = timedelta(days=1)  # sacct is asked from so much earlier on: a clock may be wrong, and a name is never used twice


@dataclass(frozen=True, slots=True)
class Submission:
    """One allocation to submit. `path`: its ledger's below the root. `script` is the batch script's text."""

    name: str
    path: str
    since: datetime
    arguments: Sequence[str]
    script: str = field(repr=False)
    package: bytes = field(default=b"", repr=False)


def submit(*, root: str, nonce: str, items: Sequence[Submission]) -> tuple[str, bytes]:
    """The command that makes allocations exist, one after another, and its standard input.

    Its answer has a section `item NUMBER WORDS…` for each that was dealt with, in order, and at the end `done`: one
    that was cut leaves open exactly what it has not answered.
    """
    packages = list(dict.fromkeys(each.package for each in items if each.package))
    scripts = [_parts(each.script) for each in items]
    bodies = list(dict.fromkeys(body for _, body in scripts))
    dirs = " ".join(f'"$root"/{shlex.quote(each.path)}' for each in items)
    values = (
        f"names={shlex.quote(','.join(each.name for each in items))}\ndirs=({dirs})\n"
        f"packages=({' '.join(str(len(each)) for each in packages)})\n"
        f"bodies=({' '.join(map(shlex.quote, bodies))})\n"
    )
    calls = []
    for number, (each, (head, body)) in enumerate(zip(items, scripts, strict=True)):
        package = str(packages.index(each.package)) if each.package else ""
        words = shlex.join([str(number), each.path, each.name, _since(each.since), package, *each.arguments])
        calls.append(f"script={shlex.quote(head)}${{bodies[{bodies.index(body)}]}}\nitem {words}\n")
    return "".join([_common(root, nonce), values, _SUBMIT, *calls, remote.SUBMITTED, "\n"]), b"".join(packages)


def _parts(script: str) -> tuple[str, str]:
    """What a script has to itself, and the rest: many of one plan share it, and bash then reads it once."""
    lines = script.splitlines(keepends=True)
    return "".join(lines[:OWN_LINES]), "".join(lines[OWN_LINES:])


def prepare(
    *,
    root: str,
    nonce: str,
    need: Need,
    prefix: str,
    after: int,
    since: datetime,
    arguments: Sequence[str],
    script: str,
    package: int = 0,
) -> str:
    """The command that looks a cache entry up, and its job, or submits one. Its standard input: `package` bytes.

    `after`: attempts up to this number are known to have ended. `prefix`: of the jobs' names, the attempt follows.
    """
    values = (
        f"kind={shlex.quote(need.kind)}\nkey={shlex.quote(need.key)}\nprefix={shlex.quote(prefix)}\nafter={after}\n"
        f"attempts={shlex.quote(attempts(need.key))}\nneeded={need.bytes // 1024}\n"
        f"packages=({package or ''})\n"
    )
    looks = [storage_text.ROOM, cache_text.fill(cache_text.WHOLE)]
    look = "\n".join([*looks, cache_text.fill(remote.PREPARE, {"CACHE": cache_text.CACHE}), ""])
    words = shlex.join(arguments)
    index = "0" if package else "''"
    call = f'item 0 "$attempts/try-$attempt" "$names" {_since(since)} {index} {words} --job-name="$names"\n'
    submits = f"{_SUBMIT}script={shlex.quote(script)}\n{call}{remote.SUBMITTED}\n"
    return _common(root, nonce) + values + look + submits


def _since(moment: datetime) -> str:
    return f"{(moment - SKEW).astimezone(UTC):%Y-%m-%dT%H:%M:%S}"


def poll(
    *,
    root: str,
    prefix: str,
    nonce: str,
    log_bytes: int = LOG_BYTES,
    poll_bytes: int = POLL_BYTES,
    storage: bool = False,
) -> str:
    """The command that asks about all allocations; the most bytes of one log, and of all. Its input: `poll_line`s.

    `storage`: ask how full the storage is, too.
    """
    words = {
        "SQUEUE_FORMAT": SQUEUE_FORMAT,
        "SACCT_FIELDS": SACCT_FIELDS,
        "SACCT_NAMES": str(SACCT_NAMES),
        "PREFIX": prefix,
        "PREPARING": preparing(prefix),
        "MANIFEST": MANIFEST,
        "LOG_BYTES": str(log_bytes),
        "POLL_BYTES": str(poll_bytes),
        "LOG": LOG,
        "STORAGE": "storage" if storage else "",
    }
    room = f"{storage_text.ROOM}\n" if storage else ""
    return _common(root, nonce) + room + _fill(remote.POLL, words)


def cancel(*, root: str, prefix: str, nonce: str) -> str:
    """The command that ends allocations. Its standard input: `cancel_line`s."""
    return _common(root, nonce) + _fill(
        f"{remote.FENCE}\n{remote.CANCEL}", {"SQUEUE_FORMAT": SQUEUE_FORMAT, "PREFIX": prefix, "PACKAGE": PACKAGE}
    )


def jobs(*, prefix: str, nonce: str) -> str:
    """The command that lists live jobs with this cluster's mark, with their comments."""
    return f"{ask_text.CLEAN}\nnonce={nonce}\n" + _fill(
        remote.JOBS, {"PREFIX": prefix, "PREPARING": preparing(prefix), "MARKED_FORMAT": MARKED_FORMAT}
    )


def cancel_jobs(jobs: Sequence[tuple[str, str]], *, root: str, ledgers: Sequence[str], nonce: str) -> str:
    """The command that ends jobs by id and name: an id alone may be another job's by now.

    `ledgers`, below the root: those of jobs that never start have an archive, which may hold secrets, to be removed.
    """
    lines = [f"ask scancel --name={shlex.quote(name)} {shlex.quote(job_id)}" for job_id, name in jobs]
    lines += [f'rm -f "$root"/{shlex.quote(each)}/{PACKAGE}' for each in ledgers]
    return "\n".join([_common(root, nonce), *lines, ""])


def share(logs: int) -> int:
    """What a poll of so many logs reads of each at most. Few get more each: a chatty log must be kept up with."""
    return max(LOG_BYTES, min(MOST_LOG_BYTES, POLL_BYTES // max(1, logs)))


def preparing(prefix: str) -> str:
    """The prefix of the jobs that prepare, from that of allocations."""
    return prefix.replace(JOB_PREFIX, PREPARE_PREFIX, 1)


def poll_line(name: str, path: str, offset: int, since: datetime, entry: str = "") -> str:
    """`entry`: the cache entry that the job makes, below the root."""
    return f"{name}\t{path}\t{offset}\t{int((since - SKEW).timestamp())}\t{entry}\n"


def cancel_line(name: str, path: str) -> str:
    return f"{name}\t{path}\n"


def _common(root: str, nonce: str) -> str:
    return f"{ask_text.CLEAN}\nroot={bash_path(root)}\nnonce={nonce}\n"


def _fill(text: str, words: dict[str, str]) -> str:
    """`text` with each of `words` replaced where it stands as a word of its own, and a line end."""
    return re.sub(rf"\b({'|'.join(words)})\b", lambda found: words[found[1]], text) + "\n"


def _patterns(texts: Sequence[str]) -> str:
    return " | ".join(f"*{shlex.quote(text)}*" for text in texts)


_SUBMIT = _fill(
    f"{remote.FENCE}\n{remote.SUBMIT}",
    {
        "CLAIM_SECONDS": str(CLAIM_SECONDS),
        "BATCH_SECONDS": str(BATCH_SECONDS),
        "ACCOUNTING_OFF": ACCOUNTING_OFF,
        "SCRIPT": SCRIPT,
        "PACKAGE": PACKAGE,
        "LOG": LOG,
        "UNKNOWN": _patterns(refusals.UNKNOWN),
        "REJECTED": _patterns(refusals.REJECTED),
        "OVERLOADED": _patterns(refusals.OVERLOADED),
        "BUSY": _patterns(refusals.BUSY),
    },
)


@dataclass(frozen=True, slots=True)
class Section:
    """What follows one nonce line: its words, and the bytes up to the next one."""

    words: tuple[str, ...]
    body: bytes = field(repr=False)


def sections(stdout: bytes, nonce: str) -> list[Section]:
    """Cut a command's output at its nonce lines; what stands before the first is noise."""
    pieces = re.split(rb"(?:^|\n)@" + nonce.encode() + rb" ([^\n]*)\n", stdout)
    return [
        Section(tuple(words.decode(errors="replace").split()), body)
        for words, body in zip(pieces[1::2], pieces[2::2], strict=True)
    ]
