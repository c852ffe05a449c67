"""What Kopf is given to write: the label of a finished Speedrun, with the removal of its finalizer."""

from __future__ import annotations

from typing import Any

import kopf
import pytest

from speedrun_operator.api.names import FINALIZER, FINISHED_LABEL
from speedrun_operator.handlers import is_let_go, label_finished

FINISHED = {"conditions": [{"type": "Finished", "status": "True"}]}


def raw(status: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": "one", "resourceVersion": "7", **metadata}, "status": status}


@pytest.mark.parametrize(
    ("body", "let_go"),
    [
        (raw(FINISHED, finalizers=[FINALIZER]), True),
        (raw(FINISHED, finalizers=["other", FINALIZER]), True),
        (raw(FINISHED, finalizers=["other"]), False),
        (raw(FINISHED), False),
        (raw({}, finalizers=[FINALIZER]), False),
        (raw({"conditions": [{"type": "Finished", "status": "False"}]}, finalizers=[FINALIZER]), False),
        (raw(FINISHED, finalizers=[FINALIZER], deletionTimestamp="2026-07-01T12:00:00Z"), False),
    ],
    ids=["finished", "held by others, too", "held by others only", "by nobody", "new", "live", "deleted"],
)
def test_the_label_is_set_where_kopf_takes_the_finalizer_off_what_has_finished(
    body: dict[str, Any], let_go: bool
) -> None:
    assert is_let_go(body) is let_go


@pytest.mark.parametrize("labels", [{}, {"labels": {"team": "a"}}, {"labels": {FINISHED_LABEL: "false"}}])
def test_the_label_is_an_operation_on_the_object_beside_kopfs_own(labels: dict[str, Any]) -> None:
    """It is sent as a JSON patch only if it is no key of Kopf's patch, which would be a request of its own."""
    patch = kopf.Patch(body=kopf.Body(raw(FINISHED, finalizers=[FINALIZER], **labels)), fns=[label_finished])
    assert dict(patch) == {}
    paths = {each["path"] for each in patch.as_json_patch()}
    escaped = FINISHED_LABEL.replace("/", "~1")
    assert paths == {f"/metadata/labels/{escaped}" if labels else "/metadata/labels"}
