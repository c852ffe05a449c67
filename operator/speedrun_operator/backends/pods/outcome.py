"""What the API server's answer to the creation of a pod, or of what goes with it, means to a person. Pure."""

from __future__ import annotations

import re

from speedrun_operator.api.phases import Reason
from speedrun_operator.backends.pods.quantity import amount
from speedrun_operator.kube.client import ApiError, NotFound, Refused
from speedrun_operator.lifecycle.observation import Busy, Outcome, Rejected, Unknown

FORBIDDEN = 403
PINNED = (
    "spec.pods.resources: limits of CPU and memory that are the requests, too, make the pod's class Guaranteed; it "
    "would be pinned to CPUs, which drains the Slurm node on the same machine: leave a limit out, or make it larger"
)
GRANT = "grant the operator's account this right; see docs/pods.md"

_REQUESTED, _LIMITED = re.compile(r"requested: (\S+), used: "), re.compile(r"limited: (\S+)")
_PIECES = frozenset({"pods", "configmaps"})  # also `count/pods`
_LIMIT_RANGE = re.compile(r"(?:maximum|minimum) \S+ usage per |max limit to request ratio per ")
_NO_ACCOUNT = re.compile(r"serviceaccount \S+ not found")


def read_refusal(error: ApiError) -> Outcome:
    """An error that the creation ended with, Conflict excepted."""
    said = str(error)
    if isinstance(error, NotFound):
        return Busy("NamespaceGone", f"the pod's namespace is not there: {said}")
    if error.status == FORBIDDEN:
        return _forbidden(said)
    if isinstance(error, Refused):
        return _rejected(f"the API server refused it: {said}")
    if error.status == 429:
        return Busy("ApiServerBusy", f"the API server could not take the pod now: {said}")
    if error.status and "failed calling webhook" in said:
        return Busy("AdmissionUnavailable", f"an admission webhook of the cluster does not answer: {said}")
    return Unknown("ApiServerUnreachable", said, reachable=False)


def _forbidden(said: str) -> Outcome:
    if "exceeded quota" in said and (beyond := _beyond(said)):
        remedy = f"a quota of the namespace never has room for so much {', '.join(beyond)}: ask for less in "
        return _rejected(f"{said} ({remedy}spec.gpus.count or spec.pods.resources, or have the quota raised)")
    if "exceeded quota" in said or "status unknown for quota" in said:
        remedy = "the pod is made when the namespace's quota has room; `kubectl describe resourcequota` shows it"
        return Busy("QuotaExceeded", f"{said} ({remedy})")
    if "must specify" in said:
        remedy = (
            "a quota of the namespace counts what the pod does not say: set spec.pods.resources.limits and .requests"
        )
        return _rejected(f"{said} ({remedy})")
    if _LIMIT_RANGE.search(said):
        remedy = (
            "a LimitRange of the namespace says so: keep to it with spec.pods.resources, which hold for each container"
        )
        return _rejected(f"{said} ({remedy})")
    if _NO_ACCOUNT.search(said):
        return Busy("ServiceAccountMissing", f"{said} (Kubernetes makes it a moment after the namespace)")
    if "violates PodSecurity" in said:
        remedy = "the namespace's Pod Security level does not allow this pod"
        return _rejected(f"{said} ({remedy})")
    if "denied the request" in said:
        return _rejected(f"an admission webhook refused it: {said}")
    if "cannot create resource" in said:
        return Busy("Forbidden", f"{said} ({GRANT})")
    if "is being terminated" in said:
        return Busy("NamespaceTerminating", said)
    return _rejected(f"the API server refused it: {said}")


def _rejected(message: str) -> Rejected:
    return Rejected(Reason.SUBMISSION_REJECTED.value, message)


def _beyond(said: str) -> list[str]:
    """The resources of which one pod asks for more than a quota's whole. A quota that counts pods may close a namespace
    for a while, which is waited for."""
    asked, whole = (
        dict(each.split("=", 1) for each in found[1].split(",") if "=" in each) if (found := form.search(said)) else {}
        for form in (_REQUESTED, _LIMITED)
    )
    both = {name: (amount(text), amount(whole[name])) for name, text in asked.items() if name in whole}
    return [
        name
        for name, (wanted, most) in both.items()
        if wanted is not None and most is not None and wanted > most and name.rpartition("/")[2] not in _PIECES
    ]
