"""What the API server's answer to the creation of a pod means, in words that a person can act on. Pure."""

from __future__ import annotations

from speedrun_operator.api.phases import Reason
from speedrun_operator.kube.client import ApiError, NotFound, Refused
from speedrun_operator.lifecycle.observation import Busy, Outcome, Rejected, Unknown

FORBIDDEN = 403
GRANT = "grant the operator's account this right; see docs/pods.md"


def read_refusal(error: ApiError) -> Outcome:
    """An error that the creation ended with, Conflict excepted."""
    said = str(error)
    if isinstance(error, NotFound):
        return Busy("NamespaceGone", f"the pod's namespace is not there: {said}")
    if error.status == FORBIDDEN:
        return _forbidden(said)
    if isinstance(error, Refused):
        return Rejected(Reason.SUBMISSION_REJECTED.value, f"the API server refused the pod: {said}")
    if error.status == 429:
        return Busy("ApiServerBusy", f"the API server could not take the pod now: {said}")
    if error.status and "failed calling webhook" in said:
        return Busy("AdmissionUnavailable", f"an admission webhook of the cluster does not answer: {said}")
    return Unknown("ApiServerUnreachable", said, reachable=False)


def _forbidden(said: str) -> Outcome:
    if "exceeded quota" in said or "must specify" in said or "status unknown for quota" in said:
        remedy = "the pod is made when the namespace's quota has room; `kubectl describe resourcequota` shows it"
        return Busy("QuotaExceeded", f"{said} ({remedy})")
    if "violates PodSecurity" in said:
        remedy = "the namespace's Pod Security level does not allow this pod"
        return Rejected(Reason.SUBMISSION_REJECTED.value, f"{said} ({remedy})")
    if "denied the request" in said:
        return Rejected(Reason.SUBMISSION_REJECTED.value, f"an admission webhook refused the pod: {said}")
    if "cannot create resource" in said:
        return Busy("Forbidden", f"{said} ({GRANT})")
    if "is being terminated" in said:
        return Busy("NamespaceTerminating", said)
    return Rejected(Reason.SUBMISSION_REJECTED.value, f"the API server refused the pod: {said}")
