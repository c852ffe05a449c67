"""`speedrun-operator cache list` and `cache prune`: what lies in the shared cache, and making room by hand."""

from __future__ import annotations

import logging
import math
import sys
from dataclasses import dataclass
from datetime import timedelta

from speedrun_operator.api.status import rfc3339
from speedrun_operator.backends.slurm.housekeeping import Housekeeper, HousekeepingError, Inventory
from speedrun_operator.keeper import Wanted, wanted
from speedrun_operator.kube.access import AccessError
from speedrun_operator.kube.client import ApiError, Kube
from speedrun_operator.lifecycle.situation import Waiting
from speedrun_operator.login import Login
from speedrun_operator.login.errors import LoginError
from speedrun_operator.login_secret import NoNamespace, Team, read, secrets_namespace, teams
from speedrun_operator.outside import access, platform_api
from speedrun_operator.platform.client import PlatformApi
from speedrun_operator.preparation.storage import GIB, CacheEntry, gib, over_the_cap, removable
from speedrun_operator.service import slurm_login
from speedrun_operator.settings import Settings

LINE = "{:<10} {:<16} {:>10}  {:<20} {}"


@dataclass(frozen=True)
class Prune:
    """What a person asks for. None: that is not what decides."""

    most_gib: int | None = None
    older_than_days: int | None = None
    ledger_days: int | None = None
    dry: bool = False
    offline: bool = False


async def run(command: str, prune: Prune, settings: Settings) -> int:
    """`cache list` and `cache prune`, of every login; the exit code."""
    logging.getLogger("speedrun_operator").addHandler(logging.NullHandler())
    if settings.login.missing and not settings.logins:
        return _fault(f"login is not configured: set {', '.join(settings.login.missing)}")
    api: PlatformApi | None = None
    kube: Kube | None = None
    try:
        live, unknown = Wanted(), None
        if not prune.offline or settings.logins:  # whose Secrets are in the API server
            try:
                api = platform_api(settings.platform) if settings.platform.in_use else None
                kube = Kube(access(settings, api))
                live = Wanted() if prune.offline else await wanted(kube, settings.watch.namespaces)
            except (AccessError, ApiError) as error:
                unknown = f"it is not known what live Speedruns wait for: {error}"
        if not settings.logins:
            return await _of_one(command, prune, settings, slurm_login(settings), settings.slurm.root, live, unknown)
        if kube is None:
            return _fault(f"{unknown}; nor are the Secrets of logins")
        return max([await _of_team(each, command, prune, settings, kube, live, unknown) for each in teams(settings)])
    finally:
        if kube is not None:
            await kube.close()
        if api is not None:
            await api.close()


async def _of_team(
    team: Team, command: str, prune: Prune, settings: Settings, kube: Kube, live: Wanted, unknown: str | None
) -> int:
    whose = ", ".join(team.namespaces)
    try:
        found = await read(kube, settings, secrets_namespace(settings), team, patience=math.inf)
    except (ApiError, NoNamespace) as error:
        return _fault(f"{whose}: {error}")
    if isinstance(found, Waiting):
        return _fault(f"{whose}: {found.message}")
    print(f"{whose}: {found}, {team.root}", flush=True)
    return await _of_one(command, prune, settings, Login(found), team.root, live, unknown)


async def _of_one(
    command: str, prune: Prune, settings: Settings, login: Login, root: str, live: Wanted, unknown: str | None
) -> int:
    housekeeper = Housekeeper(login, root)
    try:
        found = await housekeeper.look()
        if command == "list":
            _print_list(found, live, unknown)
            return 0
        if unknown is not None:
            return _fault(f"{unknown}; --offline goes by jobs and by last use alone")
        return await _prune(housekeeper, found, live, prune, settings)
    except (LoginError, HousekeepingError, ValueError) as error:
        return _fault(str(error))
    finally:
        await login.close()


def _print_list(found: Inventory, live: Wanted, unknown: str | None) -> None:
    print(LINE.format("KIND", "KEY", "SIZE", "LAST USED", "USED BY"))
    for each in sorted(found.entries, key=lambda each: (each.kind, each.used)):
        users = [f"job {job}" for job in each.users]
        users += ["being made"] if each.held else []
        users += ["a live Speedrun"] if each.key in live.keys else []
        print(LINE.format(each.kind, each.key, gib(each.bytes), rfc3339(each.used), ", ".join(users)).rstrip())
    print(f"{len(found.entries)} entries, {gib(sum(each.bytes for each in found.entries))}")
    if found.storage is not None:
        print(f"storage: {found.storage}")
    if unknown is not None:
        print(f"speedrun-operator: {unknown}", file=sys.stderr)


async def _prune(housekeeper: Housekeeper, found: Inventory, live: Wanted, prune: Prune, settings: Settings) -> int:
    gone: list[CacheEntry]
    if prune.older_than_days is not None:
        gone = removable(found.entries, live.keys, found.now, timedelta(days=prune.older_than_days))
    else:
        most = prune.most_gib if prune.most_gib is not None else settings.cache.most_gib
        gone = over_the_cap(found.entries, live.keys, found.now, most * GIB)
    told = {} if prune.dry else await housekeeper.remove(gone)
    freed = 0
    for each in gone:
        became = "would be removed" if prune.dry else told.get(str(each), "not answered")
        freed += each.bytes if prune.dry or became == "removed" else 0
        print(f"{each.kind:<10} {each.key} {gib(each.bytes):>10}  {became}")
    days = prune.ledger_days if prune.ledger_days is not None else settings.cache.ledger_days
    if days:
        count = await housekeeper.remove_ledgers(days, live.uids, dry=prune.dry)
        print(f"{count} ledgers older than {days} days {'would be' if prune.dry else 'are'} removed")
    print(f"{gib(freed)} {'would be' if prune.dry else 'are'} freed")
    return 1 if any(became == "failed" for became in told.values()) else 0


def _fault(text: str) -> int:
    print(f"speedrun-operator: {text}", file=sys.stderr)
    return 1
