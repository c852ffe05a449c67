"""`check`'s look at the logins and at Slurm through each: who one is there, its storage, what the cluster has."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import AsyncIterator

from speedrun_operator.api.spec import RecipeRef, Spec
from speedrun_operator.backends.slurm import facts
from speedrun_operator.backends.slurm.commands import sections
from speedrun_operator.backends.slurm.parts import bash_path
from speedrun_operator.facts import ClusterFacts, drivers_of, has
from speedrun_operator.findings import Finding
from speedrun_operator.kube.client import ApiError, Kube
from speedrun_operator.lifecycle.situation import Waiting
from speedrun_operator.login import Login, LoginError
from speedrun_operator.login_secret import NoNamespace, Team, read, secrets_namespace, teams
from speedrun_operator.placement import place
from speedrun_operator.planning import RunPlan, Site, plan
from speedrun_operator.recipes.recipe import Recipe, shipped
from speedrun_operator.service import slurm_login
from speedrun_operator.settings import Settings

STORAGE = 'root=ROOT; mkdir -p "$root" && [ -w "$root" ] && df -Ph "$root" | tail -n 1'
LOGIN_SECONDS = 220.0


async def slurm_findings(settings: Settings, kube: Kube | None) -> AsyncIterator[Finding]:
    """Of the operator's own login, or of all that namespaces have, at once. `kube` None: Secrets cannot be read."""
    if settings.logins:
        asked = [asyncio.create_task(_team(each, settings, kube)) for each in teams(settings)]
        for each in asked:
            for finding in await each:
                yield finding
        for namespace in set(settings.watch.namespaces) - set(settings.logins):
            yield Finding("login", False, f"{namespace} is watched, but not in logins: its jobs are not submitted")
        return
    if settings.pods.enabled and not settings.login.host:
        yield Finding("login", True, "none is configured: Speedruns of backend Slurm stay Pending")
        return
    if settings.login.missing:
        yield Finding("login", False, f"not configured: set {', '.join(settings.login.missing)}")
        return
    async for finding in _login(slurm_login(settings), settings.slurm.root, settings):
        yield finding


async def _team(team: Team, settings: Settings, kube: Kube | None) -> list[Finding]:
    """Everything of one login, each line with the namespaces that have it."""
    whose = ", ".join(team.namespaces)
    found: list[Finding] = []
    try:
        namespace = secrets_namespace(settings)
        login = await read(kube, settings, namespace, team, patience=math.inf) if kube is not None else None
    except NoNamespace as error:
        return [Finding("login", False, f"{whose}: {error}")]
    except ApiError as error:
        return [Finding("login", None, f"{whose}: {error}")]
    if login is None:
        return [Finding("login", None, f"{whose}: its Secret cannot be read without an API server")]
    if isinstance(login, Waiting):
        return [Finding("login", False, f"{whose}: {login.reason}: {login.message}")]
    async for finding in _login(Login(login), team.root, settings):
        found.append(Finding(finding.subject, finding.good, f"{whose}: {finding.text}"))
    return found


async def _login(login: Login, root: str, settings: Settings) -> AsyncIterator[Finding]:
    try:
        try:
            login.check_key()
            who = await login.run("id -un; hostname", timeout=LOGIN_SECONDS)
        except (LoginError, ValueError) as error:
            reason = f"{error.reason}: " if isinstance(error, LoginError) else ""
            yield Finding("login", False, f"{reason}{error}")
            return
        user, _, host = who.stdout.decode(errors="replace").strip().partition("\n")
        yield Finding("login", True, f"{login.target} is {user} on {host}")
        yield await _storage(login, root)
        async for finding in _cluster(login, root, settings):
            yield finding
    finally:
        await login.close()


async def _storage(login: Login, root: str) -> Finding:
    try:
        done = await login.run(STORAGE.replace("ROOT", bash_path(root)), timeout=60)
    except LoginError as error:
        return Finding("storage", None, f"{root}: {error}")
    if done.exit_code != 0:
        said = done.stderr.decode(errors="replace").strip()
        return Finding("storage", False, f"{root} cannot be written ({said}); set slurm.root to a shared directory")
    fields = done.stdout.decode(errors="replace").split()
    return Finding("storage", True, f"{root}: {fields[3]} free" if len(fields) >= 4 else root)


async def _cluster(login: Login, root: str, settings: Settings) -> AsyncIterator[Finding]:
    nonce = secrets.token_hex(8)
    try:
        done = await login.run(facts.command(root=root, nonce=nonce), timeout=60)
    except LoginError as error:
        yield Finding("slurm", None, f"sinfo: {error}")
        return
    found = facts.read(sections(done.stdout, nonce))
    if found is None:
        said = done.stderr.decode(errors="replace").strip() or "it did not answer"
        yield Finding("slurm", False, f"sinfo failed ({said}); look at slurmctld")
        return
    yield Finding("slurm", bool(found.partitions), has(found))
    for recipe in shipped().values():
        if recipe.gpus.counts[0]:
            yield _recipe(recipe, found, settings)


def _recipe(recipe: Recipe, found: ClusterFacts, settings: Settings) -> Finding:
    """Where a recipe's GPU jobs would go. That a cluster cannot run one of them is no fault of it."""
    site = Site(gpu_partition=settings.slurm.gpu_partition, partition=settings.slurm.partition)
    made = plan(Spec(recipe=RecipeRef(name=recipe.name)), {recipe.name: recipe}, site)
    placed = place(made, found) if isinstance(made, RunPlan) else made
    if not isinstance(placed, RunPlan):
        return Finding("recipe", True, f"{recipe.name} cannot run here: {placed.message}")
    drivers = ", ".join(drivers_of(found, placed.gpu_type)) or "not known until a job has run on them"
    where = f"partition {placed.partition}" if placed.partition else "Slurm's default partition"
    text = f"{recipe.name} runs on {placed.gpu_count} GPUs of {placed.gpu_type or 'any type'} in {where}"
    return Finding("recipe", True, f"{text}; driver: {drivers}" if placed.driver else text)
