"""One Speedrun as it was read from the API server: an immutable view of the raw object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from speedrun_operator.api.names import FINALIZER, FINISHED_LABEL, Identity
from speedrun_operator.api.phases import ConditionType
from speedrun_operator.api.spec import Spec
from speedrun_operator.api.status import Status

# What pydantic says behind a field: which side of a union it tried, and that a key is at fault.
_KEY_LIMIT = 64
_NO_FIELDS = frozenset({"int", "constrained-str", "[key]"})


@dataclass(frozen=True, slots=True)
class Resource:
    """`spec` is None where the stored spec does not validate; `spec_error` then says why, field by field."""

    identity: Identity
    generation: int
    resource_version: str
    created: datetime
    deleting: bool
    protected: bool
    labelled_finished: bool
    spec: Spec | None
    spec_error: str | None
    status: Status

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Resource:
        """Read an object of the API server; a malformed status counts as empty, for it can be worked out again."""
        metadata = raw["metadata"]
        spec: Spec | None = None
        error: str | None = None
        try:
            spec = Spec.model_validate(raw.get("spec") or {})
        except ValidationError as invalid:
            error = explain(invalid)
        try:
            status = Status.model_validate(raw.get("status") or {})
        except ValidationError:
            status = Status()
        return cls(
            identity=Identity(metadata["namespace"], metadata["name"], metadata["uid"]),
            generation=int(metadata.get("generation", 1)),
            resource_version=str(metadata.get("resourceVersion", "")),
            created=datetime.fromisoformat(metadata["creationTimestamp"].replace("Z", "+00:00")),
            deleting=bool(metadata.get("deletionTimestamp")),
            protected=FINALIZER in (metadata.get("finalizers") or ()),
            labelled_finished=(metadata.get("labels") or {}).get(FINISHED_LABEL) == "true",
            spec=spec,
            spec_error=error,
            status=status,
        )


def says_finished(raw: Mapping[str, Any]) -> bool:
    """Whether an object's status says that it is finished. Unparsed: it is asked at each event, and of many objects."""
    conditions = (raw.get("status") or {}).get("conditions") or []
    return any(each.get("type") == ConditionType.FINISHED and each.get("status") == "True" for each in conditions)


def explain(invalid: ValidationError) -> str:
    """A validation error as one line a person can act on: `spec.gpus.count: Input should be ...; ...`."""
    said: dict[str, list[str]] = {}
    for each in invalid.errors(include_url=False, include_input=False)[:8]:
        *parents, last = ("spec", *each["loc"])
        path = ".".join(map(_shown, parents if last in _NO_FIELDS else [*parents, last]))
        said.setdefault(path, []).append(each["msg"])
    return "; ".join(f"{path}: {' or: '.join(messages)}" for path, messages in said.items())


def _shown(part: str | int) -> str:
    """A part of a field's path, which may be a key that a user wrote: short and printable."""
    text = str(part)
    text = text if len(text) <= _KEY_LIMIT else f"{text[: _KEY_LIMIT - 1]}…"
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
