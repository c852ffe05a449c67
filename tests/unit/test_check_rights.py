"""What `check` says of the account's rights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from speedrun_operator.check import rights
from speedrun_operator.kube.client import Kube


class Reviews(Kube):
    """An API server that allows all but some resources."""

    def __init__(self, *refused: str) -> None:
        self._refused = refused

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Sequence[tuple[str, str]] = (),
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        asked = body["spec"]["resourceAttributes"]
        return {"status": {"allowed": asked["resource"] not in self._refused}}


@pytest.mark.parametrize(
    ("refused", "good", "says"),
    [
        pytest.param((), True, "namespace lab: all that is needed", id="all"),
        pytest.param(("secrets",), True, "allowed by name, if any (rbac.secretNames)", id="Secrets by name"),
        pytest.param(("configmaps", "secrets"), False, "not allowed: get configmaps; grant", id="none of a kind"),
    ],
)
async def test_rights(refused: tuple[str, ...], good: bool, says: str) -> None:
    found = await rights(Reviews(*refused), "lab", pods=False)
    assert found.good is good and says in str(found)
