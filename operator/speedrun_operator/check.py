"""`speedrun-operator check`: each thing that the operator needs, whether it is there, and what to do if it is not."""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator
from datetime import UTC, datetime

from speedrun_operator.api.names import CRD_INSTALL, CRD_NAME, GROUP, PLURAL
from speedrun_operator.api.spec import RecipeRef, Spec
from speedrun_operator.api.status import rfc3339
from speedrun_operator.backends.slurm import facts
from speedrun_operator.backends.slurm.commands import sections
from speedrun_operator.backends.slurm.parts import bash_path
from speedrun_operator.check_platform import platform_findings
from speedrun_operator.facts import ClusterFacts, drivers_of, has
from speedrun_operator.findings import Finding
from speedrun_operator.kube.access import AccessError, Credentials
from speedrun_operator.kube.client import ApiError, Kube
from speedrun_operator.kube.served import Served, settled
from speedrun_operator.login import Login, LoginError
from speedrun_operator.outside import access, platform_api
from speedrun_operator.placement import place
from speedrun_operator.planning import RunPlan, Site, plan
from speedrun_operator.platform.client import PlatformApi
from speedrun_operator.recipes.recipe import Recipe, shipped
from speedrun_operator.reminder import idle_words, last_finished
from speedrun_operator.resync import scopes
from speedrun_operator.service import slurm_login
from speedrun_operator.settings import Settings

STORAGE = 'root=ROOT; mkdir -p "$root" && [ -w "$root" ] && df -Ph "$root" | tail -n 1'
LOGIN_SECONDS = 220.0
RIGHTS = [
    (GROUP, PLURAL, "", ("get", "list", "watch", "patch", "delete")),
    (GROUP, PLURAL, "status", ("patch",)),
    ("", "events", "", ("create", "patch")),
    ("", "secrets", "", ("get",)),
    ("", "configmaps", "", ("get",)),
]
POD_RIGHTS = [
    ("", "pods", "", ("create", "get", "list", "watch", "delete")),
    ("", "pods", "log", ("get",)),
    ("", "configmaps", "", ("create",)),
]


async def check(settings: Settings) -> int:
    """Print a finding a line; the exit code is 1 if anything is wrong or could not be looked at."""
    logging.getLogger("speedrun_operator").addHandler(logging.NullHandler())  # the findings say it all
    code = 0
    async for finding in _findings(settings):
        print(finding, flush=True)
        code = code if finding.good else 1
    return code


async def _findings(settings: Settings) -> AsyncIterator[Finding]:
    api: PlatformApi | None = None
    kube: Kube | None = None
    try:
        api = platform_api(settings.platform) if settings.platform.in_use else None
        if api is not None:
            async for finding in platform_findings(api, settings):
                yield finding
        held = access(settings, api)
        kube = Kube(held)
        used = await held.current()
        yield Finding("credential", *_lasts(used))
        async for finding in _kubernetes(kube, settings):
            yield finding
        if api is not None:
            yield await _billing(kube, settings)
    except AccessError as error:
        yield Finding("api", False, str(error))
    finally:
        if kube is not None:
            await kube.close()
        if api is not None:
            await api.close()
    async for finding in _slurm(settings):
        yield finding


def _lasts(used: Credentials) -> tuple[bool, str]:
    told = f"{used.origin} for {used.server}"
    if used.end is None:
        return True, told
    if used.end <= datetime.now(UTC):
        return False, f"{told}; it has run out at {rfc3339(used.end)}: renew it"
    return True, f"{told}; until {rfc3339(used.end)}"


async def _billing(kube: Kube, settings: Settings) -> Finding:
    try:
        last = await last_finished(kube, settings.watch.namespaces)
    except ApiError as error:
        return Finding("billing", None, str(error))
    if last is None:
        return Finding("billing", True, "Speedruns are live, or there was none yet")
    return Finding("billing", True, idle_words(last, settings.slurm.root))


async def _kubernetes(kube: Kube, settings: Settings) -> AsyncIterator[Finding]:
    try:
        version = await kube.request("GET", "/version")
    except ApiError as error:
        yield Finding("api", False, f"{error}; look at the kubeconfig's server and credentials")
        return
    yield Finding("api", True, f"Kubernetes {version.get('gitVersion', 'of unknown version')}")
    yield await _crd(kube)
    for namespace in scopes(settings.watch.namespaces):
        yield await _rights(kube, namespace, settings.pods.enabled)
    if settings.cluster_id is None:
        try:
            yield Finding("cluster id", True, await kube.cluster_uid())
        except ApiError as error:
            yield Finding("cluster id", False, f"{error}; allow `get` on the namespace kube-system, or set cluster_id")


async def _crd(kube: Kube) -> Finding:
    try:
        found = await settled(kube)
    except ApiError as error:
        return Finding("crd", None, str(error))
    match found:
        case Served.CURRENT:
            return Finding("crd", True, "served, and it is this version's")
        case Served.STALE:
            return Finding("crd", False, f"served, but not this version's: {CRD_INSTALL}")
        case Served.MISSING:
            return Finding("crd", False, f"{CRD_NAME} is not installed: {CRD_INSTALL}")
        case Served.UNPUBLISHED:
            return Finding("crd", None, "served, but its schema is not published yet; look again in a moment")


async def _rights(kube: Kube, namespace: str | None, pods: bool) -> Finding:
    where = f"namespace {namespace}" if namespace else "all namespaces"
    missing = []
    for group, resource, subresource, verbs in [*RIGHTS, *(POD_RIGHTS if pods else ())]:
        for verb in verbs:
            attributes = {
                "group": group,
                "resource": resource,
                "subresource": subresource,
                "verb": verb,
                "namespace": namespace or "",
            }
            review = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": attributes},
            }
            try:
                answer = await kube.request(
                    "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body=review
                )
            except ApiError as error:
                return Finding("rights", None, f"{where}: {error}")
            if not answer.get("status", {}).get("allowed"):
                missing.append(f"{verb} {resource}{'/' if subresource else ''}{subresource}")
    if missing:
        return Finding("rights", False, f"{where}: not allowed: {', '.join(missing)}; grant them to this account")
    return Finding("rights", True, f"{where}: all that is needed")


async def _slurm(settings: Settings) -> AsyncIterator[Finding]:
    if settings.pods.enabled and not settings.login.host:
        yield Finding("login", True, "none is configured: Speedruns of backend Slurm stay Pending")
        return
    if settings.login.missing:
        yield Finding("login", False, f"not configured: set {', '.join(settings.login.missing)}")
        return
    login = slurm_login(settings)
    try:
        try:
            who = await login.run("id -un; hostname", timeout=LOGIN_SECONDS)
        except (LoginError, ValueError) as error:
            reason = f"{error.reason}: " if isinstance(error, LoginError) else ""
            yield Finding("login", False, f"{reason}{error}")
            return
        user, _, host = who.stdout.decode(errors="replace").strip().partition("\n")
        yield Finding("login", True, f"{login.target} is {user} on {host}")
        yield await _storage(login, settings)
        async for finding in _cluster(login, settings):
            yield finding
    finally:
        await login.close()


async def _storage(login: Login, settings: Settings) -> Finding:
    root = settings.slurm.root
    try:
        done = await login.run(STORAGE.replace("ROOT", bash_path(root)), timeout=60)
    except LoginError as error:
        return Finding("storage", None, f"{root}: {error}")
    if done.exit_code != 0:
        said = done.stderr.decode(errors="replace").strip()
        return Finding("storage", False, f"{root} cannot be written ({said}); set slurm.root to a shared directory")
    fields = done.stdout.decode(errors="replace").split()
    return Finding("storage", True, f"{root}: {fields[3]} free" if len(fields) >= 4 else root)


async def _cluster(login: Login, settings: Settings) -> AsyncIterator[Finding]:
    nonce = secrets.token_hex(8)
    try:
        done = await login.run(facts.command(root=settings.slurm.root, nonce=nonce), timeout=60)
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
