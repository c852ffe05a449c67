"""Getting the FineWeb shards from the Hugging Face Hub: `python -m speedrun_trainer data get`.

The Hub's own library does the transfer: resume, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE, its progress bar; by plain HTTP,
whose transfers resume, unless HF_HUB_DISABLE_XET=0 asks for Xet. What is added is what a cluster needs. One downloader
a folder: whoever else asks waits and finds the files there. Waits that the Hub asks for (Retry-After), and bounded ones
that grow. A final name that holds a whole file, verified by size and SHA-256 against the Hub's metadata, or nothing; a
damaged file is fetched again, and no other. What was verified is noted beside the shards, so that the next call needs
no network; a folder that may only be read is good if it is whole.
"""

import errno
import fcntl
import hashlib
import json
import math
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from speedrun_trainer.report import first_line
from speedrun_trainer.shards import DataError, open_shard, write_file

REPOSITORY = "kjj0/fineweb10B-gpt2"
MOST_SHARDS = 103
TRIES = 6
LONGEST_WAIT = 300.0  # seconds; who asks for more is not waited for
RETRIED = (408, 425, 429, 500, 502, 503, 504)
OUT_OF_REACH = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EBADF)
NOTES = ".verified.json"
BESIDE = ".incomplete"

T = TypeVar("T")
Say = Callable[[str], None]


class Damaged(DataError):
    """What arrived is not what the Hub announced: worth another try."""


class NoAnswer(DataError):
    """The Hub could not be asked, or not often enough."""


@dataclass(frozen=True)
class Known:
    """What the Hub says of a file: bytes, and the SHA-256 of its content where it is kept outside of git."""

    size: int
    sha256: str | None


def names(shards: int) -> list[str]:
    """Validation, then so many training shards."""
    return ["fineweb_val_000000.bin", *(f"fineweb_train_{number:06d}.bin" for number in range(1, shards + 1))]


def get(folder: Path, shards: int, *, repository: str, verify: bool, say: Say) -> None:
    """Have validation and `shards` training shards in `folder`; `verify` trusts no note. Raises DataError."""
    os.environ.setdefault("HF_HUB_DISABLE_XET", "1")  # read when the library is imported
    wanted = names(shards)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EROFS, os.strerror(errno.EROFS))
    except OSError as error:
        faults = [fault for name in wanted if (fault := local_fault(folder / name))]
        if faults:
            raise DataError(f"{folder}: cannot be written to ({error.strerror}), and {faults[0]}") from error
        say(f"{folder}: {len(wanted)} shards are there; it may only be read")
        return compare(folder, wanted, repository, say) if verify else None
    settled = not verify and all(local_fault(folder / name) is None and noted(folder / name) for name in wanted)
    away: NoAnswer | None = None
    with nullcontext() if settled else only_one(folder, say):
        for name in wanted:
            away = get_one(folder / name, repository, verify=verify, away=away, say=say)


def compare(folder: Path, wanted: Sequence[str], repository: str, say: Say) -> None:
    """Of --verify, where nothing can be mended. Raises DataError."""
    for name in wanted:
        known = patiently(partial(ask, repository, name), name, say)
        if fault := difference(folder / name, known):
            raise DataError(f"{fault}, and the folder cannot be written to")
        say(f"{folder / name}: kept, verified")


def get_one(path: Path, repository: str, *, verify: bool, away: NoAnswer | None, say: Say) -> NoAnswer | None:
    """Keep the file if it is right, else fetch it. `away` is what the Hub's absence showed as; returns it for the next.

    A whole file is no reason to wait for a Hub that cannot be reached, as where a folder was filled by hand: one try,
    and none after the first that failed.
    """
    fault = local_fault(path)
    if fault is None and not verify and noted(path):
        say(f"{path}: kept, verified before")
        return away
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        if fault is None:
            say(f"{path}: kept, not compared with the Hub (HF_HUB_OFFLINE)")
            return away
        raise DataError(f"{fault}; HF_HUB_OFFLINE forbids to fetch it")
    try:
        if away and fault is None:
            raise away
        tries = TRIES if fault or verify else 1
        known = patiently(lambda: ask(repository, path.name), path.name, say, tries=tries)
    except NoAnswer as error:
        if fault is None:
            say(f"{path}: kept, not compared with the Hub ({error})")
            return error
        raise
    if fault is None and (fault := difference(path, known)) is None:
        note(path)
        say(f"{path}: kept, verified")
        return None
    say(f"{path}: fetching {known.size:,} bytes{f', since {fault}' if path.exists() else ''}")
    patiently(lambda: fetch(repository, path, known), path.name, say)
    note(path)
    say(f"{path}: fetched, verified")
    return None


def local_fault(path: Path) -> str | None:
    """What is wrong with a shard by its own header; None if it is good so far."""
    if not path.exists():
        return f"{path} is missing"
    try:
        open_shard(path)
    except DataError as error:
        return str(error)
    return None


def difference(path: Path, known: Known) -> str | None:
    """How the file differs from the Hub's."""
    size = path.stat().st_size
    if size != known.size:
        return f"{path} has {size:,} bytes, {known.size:,} on the Hub"
    if known.sha256 and sha256(path) != known.sha256:
        return f"{path} has another SHA-256 than on the Hub"
    return None


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def noted(path: Path) -> bool:
    """Whether the file is as it was when it was verified."""
    try:
        return bool(json.loads((path.parent / NOTES).read_text())[path.name] == stamp(path))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def note(path: Path) -> None:
    notes = path.parent / NOTES
    try:
        known = dict(json.loads(notes.read_text()))
    except (OSError, ValueError, TypeError):
        known = {}
    write_file(notes, json.dumps(known | {path.name: stamp(path)}, indent=0).encode())


def stamp(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


@contextmanager
def only_one(folder: Path, say: Say) -> Iterator[None]:
    """The one downloader of a folder. The lock goes with its process, however that ends."""
    try:
        file = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
    except PermissionError:  # another user's: to read is enough for a lock, but not on NFS
        file = os.open(folder / ".lock", os.O_RDONLY)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say(f"{folder}: waiting for another process that fills it")
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        say(f"{folder}: cannot be locked here ({error.strerror}): let one process at a time fill it")
    try:
        yield
    finally:
        os.close(file)


# ---------------------------------------------------------------------------
# The Hub


def ask(repository: str, name: str) -> Known:
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

    found = HfApi().get_paths_info(repository, [name], repo_type="dataset")
    if not found or not isinstance(found[0], RepoFile):
        raise DataError(f"{name}: the dataset {repository} has no such file")
    return Known(size=found[0].size, sha256=found[0].lfs.sha256 if found[0].lfs else None)


def fetch(repository: str, path: Path, known: Known) -> None:
    """Into a folder beside it, where an interrupted transfer is taken up again; checked; moved to its name."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        part = Path(hf_hub_download(repository, path.name, repo_type="dataset", local_dir=path.parent / BESIDE))
    except LocalEntryNotFoundError as error:  # what it says of every answer that is none; the cause tells which
        raise error.__cause__ or error from None
    fault = difference(part, known) or local_fault(part)
    if fault:
        part.unlink()
        raise Damaged(f"the transfer was damaged: {fault}")
    part.replace(path)


def leave_waiting_to_us() -> None:
    """Have the Hub's library tell of a busy Hub at once: by itself it waits, without a bound, as long as it is told."""
    from huggingface_hub import get_session

    session = get_session()  # a new one where the library dropped the last
    hooks = session.event_hooks
    if tell_if_busy not in hooks["response"]:
        session.event_hooks = hooks | {"response": [*hooks["response"], tell_if_busy]}


def tell_if_busy(response: Any) -> None:
    from huggingface_hub.errors import HfHubHTTPError

    if response.status_code in RETRIED:
        raise HfHubHTTPError(f"status {response.status_code}", response=response)


def patiently(action: Callable[[], T], name: str, say: Say, *, tries: int = TRIES) -> T:
    """Try again what may succeed later, at most `tries` times. Raises DataError; NoAnswer if later may be better."""
    from huggingface_hub.errors import HfHubHTTPError

    why = ""
    for attempt in range(1, tries + 1):
        asked: float | None = None
        leave_waiting_to_us()
        try:
            return action()
        except Damaged as error:
            why = str(error)
        except DataError:
            raise
        except HfHubHTTPError as error:
            response = getattr(error, "response", None)
            status = response.status_code if response is not None else 0
            why = f"the Hub answers {status}"
            if status in (401, 403):
                raise DataError(f"{name}: {why}; set HF_TOKEN to a token that may read it") from error
            if status and status not in RETRIED:
                raise DataError(f"{name}: {why}: {first_line(error)}") from error
            asked = retry_after(response.headers.get("Retry-After")) if response is not None else None
        except OSError as error:
            if error.errno in OUT_OF_REACH:
                raise DataError(f"{name}: cannot be written: {error}") from error
            why = f"no answer from the Hub ({first_line(error)})"
        except Exception as error:  # the library's transports raise their own kinds, Xet's RuntimeError
            known = ("httpx", "httpx2", "httpcore", "httpcore2", "requests")
            if type(error).__module__.partition(".")[0] not in known and not isinstance(error, RuntimeError):
                raise
            why = f"no answer from the Hub ({first_line(error)})"
        if attempt == tries or (asked or 0) > LONGEST_WAIT:
            break
        wait = asked if asked is not None else min(2.0**attempt, 60.0) * random.uniform(0.5, 1)
        say(f"{name}: {why}; trying again in {wait:.0f} s ({attempt} of {tries})")
        time.sleep(wait)
    raise NoAnswer(f"{name}: {why} ({attempt} tries); start again later, what has arrived is kept")


def retry_after(value: str | None) -> float | None:
    """Seconds to wait, from a header that gives them or a date; None without one that can be read."""
    if value is None:
        return None
    with suppress(ValueError):
        seconds = float(value)
        return None if math.isnan(seconds) else max(seconds, 0.0)
    try:
        return max(parsedate_to_datetime(value).timestamp() - time.time(), 0.0)
    except ValueError:
        return None
