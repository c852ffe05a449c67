"""Single keys of Secrets and ConfigMaps, read by name when they are needed; never listed, watched or kept."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

from speedrun_operator.api.phases import Reason
from speedrun_operator.api.spec import KeyRef
from speedrun_operator.kube.client import Kube, NotFound, Refused


@dataclass(frozen=True, slots=True)
class Missing:
    """Why there is no value, and what to do; heals without another spec."""

    reason: Reason
    message: str


async def secret(kube: Kube, namespace: str, ref: KeyRef, field: str) -> bytes | Missing:
    """The value of a key of a Secret. `field` is where the spec names it. Raises ApiError where nobody answers."""
    try:
        found = await kube.request("GET", f"/api/v1/namespaces/{namespace}/secrets/{ref.name}")
    except NotFound:
        message = f"{field}: namespace {namespace} has no Secret {ref.name}; create it with a key {ref.key}"
        return Missing(Reason.SECRET_MISSING, message)
    except Refused as error:
        return _forbidden("secrets", namespace, ref, field, error)
    value = (found.get("data") or {}).get(ref.key)
    if value is None:
        known = ", ".join(sorted(found.get("data") or {})) or "none"
        message = f"{field}: Secret {ref.name} has no key {ref.key}; it has: {known}"
        return Missing(Reason.SECRET_KEY_MISSING, message)
    return _decoded(value)


async def config_map(kube: Kube, namespace: str, ref: KeyRef, field: str) -> bytes | Missing:
    """The same of a ConfigMap."""
    try:
        found = await kube.request("GET", f"/api/v1/namespaces/{namespace}/configmaps/{ref.name}")
    except NotFound:
        message = (
            f"{field}: namespace {namespace} has no ConfigMap {ref.name}; create it: git diff HEAD >patch && "
            f"kubectl create configmap {ref.name} -n {namespace} --from-file={ref.key}=patch"
        )
        return Missing(Reason.PATCH_MISSING, message)
    except Refused as error:
        return _forbidden("configmaps", namespace, ref, field, error)
    texts, binary = found.get("data") or {}, found.get("binaryData") or {}
    if ref.key in texts:
        return str(texts[ref.key]).encode()
    if ref.key in binary:
        return _decoded(binary[ref.key])
    known = ", ".join(sorted({*texts, *binary})) or "none"
    return Missing(Reason.PATCH_MISSING, f"{field}: ConfigMap {ref.name} has no key {ref.key}; it has: {known}")


def _decoded(value: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error:  # the API server holds to it
        return b""


def _forbidden(resource: str, namespace: str, ref: KeyRef, field: str, error: Refused) -> Missing:
    message = (
        f"{field}: the operator may not read {ref.name} in namespace {namespace} (HTTP {error.status}); "
        f"grant its account `get` on {resource} there"
    )
    return Missing(Reason.SECRET_FORBIDDEN, message)
