"""Whether a Speedrun may be submitted: yes, not yet, or not with this spec."""

from __future__ import annotations

from typing import Any

import pytest

from speedrun_operator.lifecycle.admission import admit
from speedrun_operator.lifecycle.situation import Waiting
from unit.builders import REPLAY, resource, situation

UNKNOWN = {"recipe": {"name": "nobody-has-it"}}
INVALID = {"recipe": {"name": "replay"}, "target": 0}
NO_LOGIN = Waiting("LoginNotConfigured", "set login.host")
NO_SLURM = Waiting("SchedulerNotSunk", "use another cluster", permanent=True)


@pytest.mark.parametrize(
    ("spec", "waiting", "admitted", "refused", "reason"),
    [
        pytest.param(REPLAY, None, True, False, "Admitted", id="fit to be submitted"),
        pytest.param(REPLAY, NO_LOGIN, False, False, "LoginNotConfigured", id="waits for something else than an edit"),
        pytest.param(UNKNOWN, None, False, True, "UnknownRecipe", id="only another spec heals it"),
        pytest.param(
            UNKNOWN, NO_LOGIN, False, True, "UnknownRecipe", id="and that is said before anything to wait for"
        ),
        pytest.param(REPLAY, NO_SLURM, False, True, "SchedulerNotSunk", id="a cluster that is never the right one"),
        pytest.param(INVALID, None, False, True, "InvalidSpec", id="a spec that does not validate"),
        pytest.param({}, NO_LOGIN, False, True, "InvalidSpec", id="an empty spec"),
    ],
)
def test_admission(spec: dict[str, Any], waiting: Waiting | None, admitted: bool, refused: bool, reason: str) -> None:
    admission = admit(situation(resource(spec), waiting=waiting))
    assert (admission.admitted, admission.refused, admission.reason) == (admitted, refused, reason)
    assert admission.message
    said = admission.say()
    assert (said.type, said.status, said.reason) == ("Admitted", "True" if admitted else "False", reason)
