"""Kubernetes events on a Speedrun: best effort, told once. Truth lives in conditions."""

from __future__ import annotations

import hashlib
import logging
from datetime import datetime

from speedrun_operator.api.names import API_VERSION, KIND, Identity
from speedrun_operator.api.status import rfc3339
from speedrun_operator.kube.client import MERGE_PATCH, ApiError, Conflict, Kube
from speedrun_operator.lifecycle.situation import Notice

logger = logging.getLogger(__name__)
MESSAGE_LIMIT = 1024
COMPONENT = "speedrun-operator"


async def post(kube: Kube, identity: Identity, notice: Notice, now: datetime) -> None:
    """Post one event, or count it up if the same was told before. A refusal is logged and nothing more."""
    message = notice.message[:MESSAGE_LIMIT]
    digest = hashlib.sha256(f"{identity.uid}\0{notice.reason}\0{message}".encode()).hexdigest()[:16]
    name = f"{identity.name[:200]}.{digest}"
    moment = rfc3339(now)
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": identity.namespace},
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": identity.name,
            "namespace": identity.namespace,
            "uid": identity.uid,
        },
        "type": "Warning" if notice.warning else "Normal",
        "reason": notice.reason,
        "message": message,
        "source": {"component": COMPONENT},
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
    }
    path = f"/api/v1/namespaces/{identity.namespace}/events"
    try:
        try:
            await kube.request("POST", path, body=event)
        except Conflict:
            await kube.request(
                "PATCH", f"{path}/{name}", body={"lastTimestamp": moment, "count": 2}, content_type=MERGE_PATCH
            )
    except ApiError as error:
        logger.warning("event %s on %s was not posted: %s", notice.reason, identity, error)
