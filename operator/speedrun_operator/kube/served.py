"""The CRD that the API server serves, beside this version's own.

It is read from the API server's OpenAPI document, which everybody may read: rights on CRDs are needed for nothing.
"""

from __future__ import annotations

import asyncio
from enum import StrEnum
from functools import cache
from typing import Any

from speedrun_operator.api.names import GROUP, KIND, VERSION
from speedrun_operator.api.schema import custom_resource_definition
from speedrun_operator.kube.client import Kube, NotFound

GROUP_PATH = f"/apis/{GROUP}/{VERSION}"
SCHEMA_PATH = f"/openapi/v3{GROUP_PATH}"
PUBLISH_SECONDS = 10.0
"""The API server publishes a schema at most so long after it serves the resource, or another one of it."""


class Served(StrEnum):
    """What is served. `UNPUBLISHED`: the resource, and its schema in a moment."""

    CURRENT = "current"
    STALE = "stale"
    MISSING = "missing"
    UNPUBLISHED = "unpublished"


async def served(kube: Kube) -> Served:
    """What the API server serves now. Raises ApiError where it does not say."""
    try:
        await kube.request("GET", GROUP_PATH)
    except NotFound:
        return Served.MISSING
    try:
        document = await kube.request("GET", SCHEMA_PATH)
    except NotFound:
        return Served.UNPUBLISHED
    name = f"{'.'.join(reversed(GROUP.split('.')))}.{VERSION}.{KIND}"
    theirs = document["components"]["schemas"].get(name, {})
    return Served.CURRENT if _compared(theirs) == _ours() else Served.STALE


async def settled(kube: Kube) -> Served:
    """The same, once the API server has had the time to publish it. Raises ApiError."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PUBLISH_SECONDS
    while True:
        found = await served(kube)
        if found in (Served.CURRENT, Served.MISSING) or loop.time() > deadline:
            return found
        await asyncio.sleep(0.5)


@cache
def _ours() -> Any:
    return _compared(custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"])


def _compared(schema: dict[str, Any]) -> Any:
    """A schema without what the API server adds to it: metadata, its own kind, and a spelled-out int-or-string."""
    properties = schema.get("properties", {})
    return [_plain(properties.get(part)) for part in ("spec", "status")], schema.get("x-kubernetes-validations")


def _plain(node: Any) -> Any:
    if isinstance(node, list):
        return [_plain(each) for each in node]
    if not isinstance(node, dict):
        return node
    added = {"anyOf"} if node.get("x-kubernetes-int-or-string") else set()
    return {key: _plain(value) for key, value in node.items() if key not in added}
