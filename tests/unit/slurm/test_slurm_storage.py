"""The shared storage: how full it is whatever sets the limit, what lies in the cache, and what may go."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from speedrun_operator.backends.slurm import storage_text
from speedrun_operator.backends.slurm.commands import Section
from speedrun_operator.backends.slurm.housekeeping import Housekeeper, HousekeepingError
from speedrun_operator.backends.slurm.outcome import read_preparation
from speedrun_operator.lifecycle.observation import Busy
from speedrun_operator.login import Login
from speedrun_operator.preparation.storage import GIB, CacheEntry, over_the_cap, removable
from unit.builders import at

HOUR = 3600
DF = "Filesystem 1024-blocks Used Available Capacity Mounted on\ncephfs 1000000 400000 600000 40% /home\n"


@dataclass
class Place:
    """A shared directory and a login that runs commands here, with stand-ins of Slurm's and of quota programs."""

    folder: Path
    programs: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.root = self.folder / "runs"
        self.root.mkdir()
        (self.folder / "bin").mkdir()
        self.says("squeue", "")

    def says(self, program: str, text: str, code: int = 0) -> None:
        (self.folder / f"{program}.says").write_text(text)
        path = self.folder / "bin" / program
        path.write_text(f'#!/bin/bash\ncat "{self.folder}/{program}.says"\nexit {code}\n')
        path.chmod(0o755)

    def bash(self, text: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        environment = {"PATH": f"{self.folder}/bin:/usr/bin:/bin", "HOME": str(self.folder)}
        return subprocess.run(["bash", "-c", text], input=stdin, capture_output=True, env=environment, check=False)

    def room(self) -> str:
        return self.bash(f'root="{self.root}"\n{storage_text.ROOM}\nroom').stdout.decode().strip()

    @property
    def housekeeper(self) -> Housekeeper:
        async def run(command: str, *, stdin: bytes = b"", **_: float) -> Any:
            done = self.bash(command, stdin)
            return SimpleNamespace(stdout=done.stdout, stderr=done.stderr, exit_code=done.returncode)

        return Housekeeper(cast(Login, SimpleNamespace(run=run)), str(self.root))

    def entry(self, kind: str, key: str, *, used_hours_ago: float, bytes_: int = 100) -> Path:
        entry = self.root / ".cache" / kind / key
        entry.mkdir(parents=True)
        (entry / "manifest").write_text(f"kind={kind}\nkey={key}\nbytes={bytes_}\nmade=1790000000\nlisting=x\n")
        self.age(entry / "manifest", used_hours_ago)
        return entry

    def age(self, path: Path, hours: float) -> None:
        then = path.stat().st_mtime - hours * HOUR
        os.utime(path, (then, then))

    def uses(self, job: int, *entries: str) -> None:
        uses = self.root / ".cache" / "uses"
        uses.mkdir(parents=True, exist_ok=True)
        (uses / str(job)).write_text("".join(f"{each}\n" for each in entries))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


A, B, C = "a" * 16, "b" * 16, "c" * 16


# How full it is ---------------------------------------------------------------------------------------------------


def test_the_file_systems_own_numbers_are_what_counts_without_a_quota(place: Place) -> None:
    place.says("df", DF)
    for program in ("getfattr", "lfs", "quota"):
        place.says(program, "", code=1)
    assert place.room() == "1000000 400000 600000"


@pytest.mark.parametrize(
    ("program", "says", "room"),
    [
        (
            "quota",
            "     Filesystem blocks quota limit grace\n cephfs 100000* 90000 95000 6days 1 0 0\n",
            "90000 100000 0",
        ),
        ("quota", "     Filesystem blocks quota limit grace\n cephfs 100000 0 150000 1 0 0\n", "150000 100000 50000"),
        ("quota", "     Filesystem blocks quota limit grace\n other 100000 0 150000 1 0 0\n", "1000000 400000 600000"),
        ("quota", "     Filesystem blocks quota limit grace\n cephfs 1 0 9999999 1 0 0\n", "1000000 400000 600000"),
        ("lfs", "/home 100000 0 200000 - 5 0 0 -\n", "200000 100000 100000"),
        ("getfattr", "409600000", "400000 400000 0"),
    ],
    ids=["soft limit", "hard limit", "another file system", "a wide quota", "Lustre", "CephFS"],
)
def test_a_quota_counts_where_it_leaves_less(place: Place, program: str, says: str, room: str) -> None:
    place.says("df", DF)
    for each in ("getfattr", "lfs", "quota"):
        place.says(each, "", code=1)
    (place.folder / "bin" / "lfs").unlink()
    place.says(program, says)
    assert place.room() == room


def test_a_storage_that_cannot_be_measured_is_unknown(place: Place) -> None:
    place.says("df", "df: no such file\n", code=1)
    assert place.room() == ""


def test_too_little_room_is_said_with_numbers() -> None:
    full = Section(("full", str(3 * 1024**2), str(24 * 1024**2), str(100 * 1024**2)), b"")
    said = read_preparation([full, Section(("done",), b"")], "")
    outcome = read_preparation([full], "")
    assert isinstance(said, Busy) and said == outcome
    assert said.reason == "StorageFull"
    assert said.message.startswith("3.0 GiB of 100.0 GiB are free below slurm.root, and 24.0 GiB may be needed")


# What may go ------------------------------------------------------------------------------------------------------


def entry(key: str, hours: float, gib: int = 1, **changes: Any) -> CacheEntry:
    return CacheEntry("data", key, gib * GIB, None, at(-hours * HOUR), **changes)


def test_the_longest_unused_goes_first_and_no_more_than_is_needed() -> None:
    entries = [entry(A, 5), entry(B, 50), entry(C, 20)]
    assert [each.key for each in over_the_cap(entries, (), at(0), 2 * GIB)] == [B]
    assert [each.key for each in over_the_cap(entries, (), at(0), 1 * GIB)] == [B, C]
    assert over_the_cap(entries, (), at(0), 3 * GIB) == []


@pytest.mark.parametrize(
    "spared",
    [entry(A, 50, users=("17",)), entry(A, 50, held=True), entry(A, 0.9)],
    ids=["a running job uses it", "it is being made", "it was used just now"],
)
def test_what_is_in_use_stays_even_above_the_cap(spared: CacheEntry) -> None:
    assert over_the_cap([spared, entry(B, 5)], (), at(0), 0) == [entry(B, 5)]


def test_what_a_live_speedrun_wants_stays() -> None:
    assert removable([entry(A, 50), entry(B, 50)], {A}, at(0)) == [entry(B, 50)]


# On the login node ------------------------------------------------------------------------------------------------


async def test_the_cache_is_listed_with_who_uses_it(place: Place) -> None:
    place.entry("data", A, used_hours_ago=3, bytes_=2_000_000)
    place.entry("image", B, used_hours_ago=1)
    (place.root / ".cache" / "image" / f"{B}.lock").mkdir()
    (place.root / ".cache" / "code" / f"{C}.part.17").mkdir(parents=True)
    place.says("squeue", "40 RUNNING\n41 COMPLETED\n")
    place.uses(40, f"data {A}")
    place.uses(41, f"image {B}")
    found = await place.housekeeper.look()
    by_key = {each.key: each for each in found.entries}
    assert set(by_key) == {A, B}
    assert (by_key[A].bytes, by_key[A].users, by_key[A].held) == (2_000_000, ("40",), False)
    assert (by_key[B].users, by_key[B].held) == ((), True)
    assert found.storage is not None and found.storage.size > 0
    assert 10_000 < (found.now - by_key[A].used).total_seconds() < 11_500


async def test_without_squeue_nobody_knows_what_is_in_use(place: Place) -> None:
    place.entry("data", A, used_hours_ago=3)
    place.says("squeue", "", code=1)
    with pytest.raises(HousekeepingError, match="cache could not be listed"):
        await place.housekeeper.look()


async def test_an_entry_goes_whole_unless_somebody_came_to_use_it_meanwhile(place: Place) -> None:
    gone = place.entry("data", A, used_hours_ago=30)
    used = place.entry("data", B, used_hours_ago=30)
    taken = place.entry("image", C, used_hours_ago=30)
    found = await place.housekeeper.look()
    place.age(used / "manifest", -29)
    place.uses(50, f"image {C}")
    told = await place.housekeeper.remove(found.entries)
    assert told == {f"data {A}": "removed", f"data {B}": "kept", f"image {C}": "kept"}
    assert [path.exists() for path in (gone, used, taken)] == [False, True, True]


async def test_old_ledgers_go_and_those_of_live_speedruns_and_jobs_stay(place: Place) -> None:
    ledgers = {}
    for name, job, days in (
        ("old-11111111", 17, 40),
        ("live-22222222", 18, 40),
        ("runs-33333333", 19, 40),
        ("new-44444444", 20, 1),
    ):
        ledger = place.root / "lab" / name / "alloc-0"
        ledger.mkdir(parents=True)
        for file, text in (("jobid", f"{job} 1790000000\n"), ("log", "x"), ("exit", "x")):
            (ledger / file).write_text(text)
            place.age(ledger / file, days * 24)
        place.age(ledger, days * 24)
        ledgers[name] = ledger
    place.says("squeue", "|19|\n")
    assert await place.housekeeper.remove_ledgers(30, {"22222222"}, dry=True) == 1
    assert all(ledger.exists() for ledger in ledgers.values())
    assert await place.housekeeper.remove_ledgers(30, {"22222222"}, dry=False) == 1
    assert [name for name, ledger in ledgers.items() if not ledger.exists()] == ["old-11111111"]
    assert not ledgers["old-11111111"].parent.exists()
