"""`speedrun-operator check`: each thing that the operator needs, whether it is there, and what to do if it is not."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime

from speedrun_operator.api.names import CRD_INSTALL, CRD_NAME, GROUP, PLURAL
from speedrun_operator.api.status import rfc3339
from speedrun_operator.check_platform import platform_findings
from speedrun_operator.check_slurm import slurm_findings
from speedrun_operator.findings import Finding
from speedrun_operator.kube.access import AccessError, Credentials
from speedrun_operator.kube.client import ApiError, Kube
from speedrun_operator.kube.served import Served, settled
from speedrun_operator.outside import access, platform_api
from speedrun_operator.platform.client import PlatformApi
from speedrun_operator.reminder import idle_words, last_finished
from speedrun_operator.resync import scopes
from speedrun_operator.settings import Settings

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
    ("", "events", "", ("list",)),
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
    try:
        async for finding in slurm_findings(settings, kube):
            yield finding
    finally:
        if kube is not None:
            await kube.close()
        if api is not None:
            await api.close()


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
    return Finding("billing", True, idle_words(last, ", ".join(settings.roots)))


async def _kubernetes(kube: Kube, settings: Settings) -> AsyncIterator[Finding]:
    try:
        version = await kube.request("GET", "/version")
    except ApiError as error:
        yield Finding("api", False, f"{error}; look at the kubeconfig's server and credentials")
        return
    yield Finding("api", True, f"Kubernetes {version.get('gitVersion', 'of unknown version')}")
    yield await _crd(kube)
    for namespace in scopes(settings.watch.namespaces):
        yield await rights(kube, namespace, settings.pods.enabled)
    if settings.pods.enabled:
        yield await _gpu_labels(kube)
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


async def _gpu_labels(kube: Kube) -> Finding:
    """No fault either way: many a cluster names its GPUs as is likely, or has none."""
    try:
        if await _allowed(kube, "", "nodes", "", "list", None):
            return Finding("gpu labels", True, "the nodes' labels tell where pods find a type of GPU")
    except ApiError as error:
        return Finding("gpu labels", None, f"all namespaces: {error}")
    said = "not allowed: list nodes; so pods ask for likely names of a GPU type, and wait where nodes have others"
    return Finding("gpu labels", True, f"{said}: allow it (rbac.nodes in the chart) if GPU types matter")


async def rights(kube: Kube, namespace: str | None, pods: bool) -> Finding:
    """Whether the account may do what the operator does, in a namespace (None: in all)."""
    where = f"namespace {namespace}" if namespace else "all namespaces"
    missing, by_name = [], ""
    for group, resource, subresource, verbs in [*RIGHTS, *(POD_RIGHTS if pods else ())]:
        for verb in verbs:
            try:
                allowed = await _allowed(kube, group, resource, subresource, verb, namespace)
            except ApiError as error:
                return Finding("rights", None, f"{where}: {error}")
            if allowed:
                continue
            if resource == "secrets":  # a right to some by name is not seen by asking for any
                by_name = "; Secrets only those that are allowed by name, if any (rbac.secretNames)"
            else:
                missing.append(f"{verb} {resource}{'/' if subresource else ''}{subresource}")
    if missing:
        return Finding("rights", False, f"{where}: not allowed: {', '.join(missing)}; grant them to this account")
    return Finding("rights", True, f"{where}: all that is needed{by_name}")


async def _allowed(kube: Kube, group: str, resource: str, subresource: str, verb: str, namespace: str | None) -> bool:
    """Whether this account has a right; None: in all namespaces. Raises ApiError."""
    attributes = {"group": group, "resource": resource, "subresource": subresource, "verb": verb}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {**attributes, "namespace": namespace or ""}},
    }
    answer = await kube.request("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body=review)
    return bool(answer.get("status", {}).get("allowed"))
