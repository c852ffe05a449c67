"""What the API server serves, beside this version's CRD."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from speedrun_operator.api.schema import custom_resource_definition
from speedrun_operator.kube import served as room
from speedrun_operator.kube.client import Kube, NotFound
from speedrun_operator.kube.served import GROUP_PATH, SCHEMA_PATH, Served, served, settled

SCHEMA: Mapping[str, Any] = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


class Documents(Kube):
    """Answers with documents by their paths."""

    def __init__(self, documents: Mapping[str, Any]) -> None:
        self.documents = dict(documents)
        self.asked = 0

    async def request(self, method: str, path: str, **_: Any) -> dict[str, Any]:
        self.asked += 1
        if path not in self.documents:
            raise NotFound(404, path)
        return dict(self.documents[path])


def published(change: Callable[[dict[str, Any]], object] = lambda schema: None) -> Documents:
    """As an API server publishes it: with what it adds to each schema."""
    schema = copy.deepcopy(dict(SCHEMA))
    change(schema)
    schema["properties"] |= {each: {"type": "string"} for each in ("apiVersion", "kind", "metadata")}
    _spell_out(schema)
    document = {"components": {"schemas": {"dev.speedrun.v1alpha1.Speedrun": schema}}}
    return Documents({GROUP_PATH: {}, SCHEMA_PATH: document})


def _spell_out(node: Any) -> None:
    if isinstance(node, dict):
        if node.get("x-kubernetes-int-or-string"):
            node["anyOf"] = [{"type": "integer"}, {"type": "string"}]
        for each in node.values():
            _spell_out(each)
    elif isinstance(node, list):
        for each in node:
            _spell_out(each)


@pytest.mark.parametrize(
    ("documents", "found"),
    [
        (published(), Served.CURRENT),
        (published(lambda schema: schema["properties"]["spec"]["properties"].pop("suspend")), Served.STALE),
        (published(lambda schema: schema["properties"]["status"]["properties"].pop("step")), Served.STALE),
        (published(lambda schema: schema.pop("x-kubernetes-validations")), Served.STALE),
        (Documents({}), Served.MISSING),
        (Documents({GROUP_PATH: {}}), Served.UNPUBLISHED),
    ],
)
async def test_what_is_served(documents: Documents, found: Served) -> None:
    assert await served(documents) is found


async def test_what_is_missing_or_well_is_said_at_once_and_the_rest_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    missing = Documents({})
    assert (await settled(missing), missing.asked) == (Served.MISSING, 1)
    monkeypatch.setattr(room, "PUBLISH_SECONDS", 0.01)
    stale = published(lambda schema: schema.pop("x-kubernetes-validations"))
    assert (await settled(stale), stale.asked) == (Served.STALE, 4)
