"""Looking after the shared storage, over the login: what lies in the cache, taking entries and old ledgers away."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from speedrun_operator.backends import cache_text
from speedrun_operator.backends.cache_text import CACHE
from speedrun_operator.backends.slurm import ask_text, storage_text
from speedrun_operator.backends.slurm.commands import Section, sections
from speedrun_operator.backends.slurm.parts import bash_path
from speedrun_operator.backends.slurm.queue import epoch, number, read_storage
from speedrun_operator.login import Login
from speedrun_operator.preparation.manifest import read_manifest
from speedrun_operator.preparation.storage import CacheEntry, Storage, is_key

SECONDS = 600.0  # to remove a million small files takes time


class HousekeepingError(Exception):
    """The storage could not be looked at; the message says why. Nothing was removed."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """What lies in the cache, at `now` by the login's clock."""

    now: datetime
    entries: tuple[CacheEntry, ...]
    storage: Storage | None


class Housekeeper:
    """Methods raise LoginError and HousekeepingError."""

    def __init__(self, login: Login, root: str) -> None:
        self._login = login
        self._root = root

    async def look(self) -> Inventory:
        """All entries of the cache, with who uses them."""
        answer, said = await self._run(f"{storage_text.ROOM}\n{storage_text.LIST}")
        if not answer or answer[-1].words != ("done",):
            raise HousekeepingError(f"the cache could not be listed: {said or 'the answer was not whole'}")
        return read_inventory(answer)

    async def remove(self, entries: Sequence[CacheEntry]) -> dict[str, str]:
        """What became of each, by `KIND KEY`: removed, kept (it is in use by now) or failed."""
        asked = "".join(f"{each.kind}\t{each.key}\t{int(each.used.timestamp())}\n" for each in entries)
        answer, said = await self._run(storage_text.REMOVE, asked)
        if not answer or answer[-1].words != ("done",):
            raise HousekeepingError(f"removing was cut: {said or 'the answer was not whole'}")
        return {" ".join(section.words[1:]): section.words[0] for section in answer[:-1]}

    async def remove_ledgers(self, days: int, live: Collection[str], *, dry: bool) -> int:
        """How many ledgers are older than `days`, and are gone but for a dry run. `live`: uid8 of live Speedruns."""
        text = storage_text.LEDGERS.replace("DAYS", str(days)).replace("DRY", "dry" if dry else "")
        answer, said = await self._run(text, "".join(f"{each}\n" for each in sorted(live)))
        if not answer or answer[-1].words[0] != "ledgers":
            raise HousekeepingError(f"ledgers could not be looked at: {said or 'the answer was not whole'}")
        return number(answer[-1].words[1]) or 0

    async def _run(self, text: str, stdin: str = "") -> tuple[list[Section], str]:
        nonce = secrets.token_hex(8)
        head = f"{ask_text.CLEAN}\nroot={bash_path(self._root)}\nnonce={nonce}\n"
        command = head + cache_text.fill(text, {"CACHE": CACHE}) + "\n"
        done = await self._login.run(command, stdin=stdin.encode(), timeout=SECONDS)
        return sections(done.stdout, nonce), done.stderr.decode(errors="replace").strip()[-500:]


def read_inventory(answer: Sequence[Section]) -> Inventory:
    """The sections of a listing. Raises HousekeepingError where they say neither the time nor the queue."""
    now: datetime | None = None
    known = False
    storage: Storage | None = None
    users: dict[tuple[str, str], list[str]] = {}
    found = []
    for section in answer:
        match section.words:
            case ("now", seconds):
                now = epoch(seconds)
            case ("squeue", "0"):
                known = True
            case ("use", kind, key, job):
                users.setdefault((kind, key), []).append(job)
            case ("entry", kind, key, used, *held) if is_key(key) and (at := epoch(used)):
                found.append((kind, key, at, bool(held), read_manifest(section.body.decode(errors="replace"))))
            case ("storage", *numbers):
                storage = read_storage(numbers)
            case _:
                pass
    if now is None or not known:
        raise HousekeepingError("squeue does not answer, so it is not known which entries are in use")
    entries = [
        CacheEntry(
            kind,
            key,
            manifest.bytes or 0,
            epoch(manifest.facts.get("made", "")),
            used_at,
            tuple(users.get((kind, key), ())),
            held_now,
        )
        for kind, key, used_at, held_now, manifest in found
    ]
    return Inventory(now, tuple(entries), storage)
