"""Kubernetes events, most of them on a Speedrun: best effort, told once. Truth lives in conditions."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, replace
from datetime import datetime

from speedrun_operator.api.names import API_VERSION, KIND, Identity
from speedrun_operator.api.status import rfc3339
from speedrun_operator.kube.client import MERGE_PATCH, ApiError, Conflict, Kube
from speedrun_operator.lifecycle.situation import Notice

logger = logging.getLogger(__name__)
MESSAGE_LIMIT = 1024
COMPONENT = "speedrun-operator"


@dataclass(frozen=True, slots=True)
class Subject:
    """What an event is about. `uid` may be empty where it is not known: then `kubectl describe` does not show it."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


async def identified(kube: Kube, subject: Subject) -> Subject:
    """The same with its UID, if it may be read. It is of a group other than the core's."""
    kind = f"{subject.kind.lower()}s"
    path = f"/apis/{subject.api_version}/namespaces/{subject.namespace}/{kind}/{subject.name}"
    try:
        found = await kube.request("GET", path)
    except ApiError as error:
        logger.info("events on %s will not be shown with it, for it cannot be read: %s", subject, error)
        return subject
    return replace(subject, uid=found["metadata"]["uid"])


async def post(kube: Kube, identity: Identity, notice: Notice, now: datetime) -> None:
    """Post one event on a Speedrun, as `post_on`."""
    subject = Subject(API_VERSION, KIND, identity.namespace, identity.name, identity.uid)
    await post_on(kube, subject, notice, now)


async def post_on(kube: Kube, subject: Subject, notice: Notice, now: datetime) -> None:
    """Post one event, or count it up if the same was told before. A refusal is logged and nothing more."""
    message = notice.message[:MESSAGE_LIMIT]
    whose = subject.uid or subject.kind
    digest = hashlib.sha256(f"{whose}\0{notice.reason}\0{message}".encode()).hexdigest()[:16]
    name = f"{subject.name[:200]}.{digest}"
    involved = {
        "apiVersion": subject.api_version,
        "kind": subject.kind,
        "name": subject.name,
        "namespace": subject.namespace,
        **({"uid": subject.uid} if subject.uid else {}),
    }
    moment = rfc3339(now)
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": subject.namespace},
        "involvedObject": involved,
        "type": "Warning" if notice.warning else "Normal",
        "reason": notice.reason,
        "message": message,
        "source": {"component": COMPONENT},
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
    }
    path = f"/api/v1/namespaces/{subject.namespace}/events"
    try:
        try:
            await kube.request("POST", path, body=event)
        except Conflict:
            await kube.request(
                "PATCH", f"{path}/{name}", body={"lastTimestamp": moment, "count": 2}, content_type=MERGE_PATCH
            )
    except ApiError as error:
        logger.warning("event %s on %s was not posted: %s", notice.reason, subject, error)
