"""`speedrun-operator detach`: Speedruns that can be deleted without an operator. Their jobs go on.

The finalizer holds a deletion until the operator has ended the jobs; where the operator is gone nobody would. A running
operator puts it back at once, so the Deployment that the settings name is ended first.
"""

from __future__ import annotations

import asyncio
import sys
import time

from speedrun_operator.api.names import FINALIZER, Identity
from speedrun_operator.kube.access import AccessError
from speedrun_operator.kube.client import MERGE_PATCH, ApiError, Conflict, Json, Kube, NotFound
from speedrun_operator.outside import access, platform_api
from speedrun_operator.resync import scopes
from speedrun_operator.service import deployment as deployment_of
from speedrun_operator.settings import Settings

GONE_SECONDS = 180.0
TRIES = 5


async def detach(settings: Settings) -> int:
    """Take the operator's finalizer off every Speedrun that the settings say to watch; the exit code."""
    api = platform_api(settings.platform) if settings.platform.in_use and not settings.platform.readiness_only else None
    kube: Kube | None = None
    try:
        kube = Kube(access(settings, api))
        if deployment := deployment_of(settings):
            await _end(kube, deployment.namespace, deployment.name)
        count = 0
        for scope in scopes(settings.watch.namespaces):
            for raw in await kube.list_speedruns(scope):
                about = raw["metadata"]
                count += await _let_go(kube, Identity(about["namespace"], about["name"], about["uid"]))
    except (AccessError, ApiError, TimeoutError) as error:
        print(f"speedrun-operator: {error}", file=sys.stderr)
        return 1
    finally:
        if kube is not None:
            await kube.close()
        if api is not None:
            await api.close()
    print(f"the finalizer is off {count} Speedrun{'' if count == 1 else 's'}; jobs go on")
    return 0


async def _end(kube: Kube, namespace: str, deployment: str) -> None:
    """Scale a Deployment to nothing and wait until its pods are gone. Raises ApiError, TimeoutError."""
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments/{deployment}"
    try:
        found = await kube.request("GET", path)
        await kube.request("PATCH", f"{path}/scale", body={"spec": {"replicas": 0}}, content_type=MERGE_PATCH)
    except NotFound:
        return
    labels = ",".join(f"{key}={value}" for key, value in found["spec"]["selector"]["matchLabels"].items())
    deadline = time.monotonic() + GONE_SECONDS
    while await _pods(kube, namespace, labels):
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"the pods of deployment {namespace}/{deployment} have not ended within {GONE_SECONDS:.0f} s: "
                "look at them, and try again"
            )
        await asyncio.sleep(1.0)


async def _pods(kube: Kube, namespace: str, labels: str) -> list[Json]:
    found = await kube.request("GET", f"/api/v1/namespaces/{namespace}/pods", query=[("labelSelector", labels)])
    return list(found.get("items") or [])


async def _let_go(kube: Kube, identity: Identity) -> bool:
    """Whether it had the finalizer. Raises ApiError."""
    for _ in range(TRIES):
        try:
            raw = await kube.get_speedrun(identity.namespace, identity.name)
            left = list(raw["metadata"].get("finalizers") or [])
            if raw["metadata"]["uid"] != identity.uid or FINALIZER not in left:
                return False
            left.remove(FINALIZER)
            version = raw["metadata"]["resourceVersion"]
            body = {"metadata": {"finalizers": left, "resourceVersion": version}}
            await kube.patch_speedrun(identity.namespace, identity.name, body)
        except NotFound:
            return False
        except Conflict:
            continue
        return True
    raise Conflict(409, f"{identity} is changed all the time: is another operator running? End it, and try again")
