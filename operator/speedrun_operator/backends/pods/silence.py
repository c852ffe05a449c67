"""Of which pods nothing can be said now, and why: scope by scope, so that a namespace without rights silences no other.

A watch that broke a moment ago does not know it yet: so in each scope one pod is asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from speedrun_operator.backends.pods.outcome import FORBIDDEN, GRANT
from speedrun_operator.backends.pods.store import Store
from speedrun_operator.kube.client import ApiError, NotFound
from speedrun_operator.kube.pods import Pods
from speedrun_operator.lifecycle.observation import Unknown


async def silences(store: Store, pods: Pods, names: Mapping[str, str]) -> dict[str, Unknown]:
    """Why, by the pod's name. `names`: of the pods in question, with the namespace of each."""
    asked = {store.scope(namespace): (namespace, name) for name, namespace in names.items()}
    faults = await asyncio.gather(*(_fault(store, pods, scope, *pod) for scope, pod in asked.items()))
    silent = {scope: _said(error) for scope, error in zip(asked, faults, strict=True) if error is not None}
    scopes = {name: store.scope(namespace) for name, namespace in names.items()}
    return {name: silent[scope] for name, scope in scopes.items() if scope in silent}


async def _fault(store: Store, pods: Pods, scope: str | None, namespace: str, name: str) -> ApiError | None:
    try:
        with suppress(NotFound):
            await pods.get(namespace, name)
    except ApiError as error:
        return error
    return store.fault(scope)


def _said(error: ApiError) -> Unknown:
    if error.status == FORBIDDEN:
        return Unknown("Forbidden", f"{error} ({GRANT})", reachable=False)
    return Unknown("ApiServerUnreachable", str(error), reachable=False)
