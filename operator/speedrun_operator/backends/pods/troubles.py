"""What of a pod that is stuck is no fault of its spec, so that another one may do better later. Pure."""

from __future__ import annotations

import re

from speedrun_operator.diagnosis import sign_of
from speedrun_operator.diagnosis.pods import NOT_STARTED

RATE_LIMIT, NOT_FETCHED, CONTAINER_FAILED = "RegistryRateLimit", "ImageNotFetched", "ContainerFailed"
_PULLING = ("ErrImagePull", "ImagePullBackOff")
_OF_THE_NODE = ("ImageInspectError", "FailedCreatePodSandBox")
_LIMITED = re.compile("toomanyrequests|pull rate limit|429 Too Many Requests")
# A host that nobody knows, or where nothing listens, is not among them: as a rule the image's name is wrong.
_AWAY = re.compile(
    "i/o timeout|TLS handshake timeout|context deadline exceeded|connection reset|unexpected EOF|"
    "server misbehaving|Temporary failure in name resolution|network is unreachable|no route to host|"
    "50[0-4] (Internal Server Error|Bad Gateway|Service Unavailable|Gateway Time-?out)"
)


def trouble(word: str, message: str) -> str | None:
    """The reason, as rules have it, of a pod stuck with `word`; None: nothing says that its spec is well."""
    if word == "RegistryUnavailable":
        return NOT_FETCHED
    if word in _PULLING:
        return RATE_LIMIT if _LIMITED.search(message) else NOT_FETCHED if _AWAY.search(message) else None
    if word in _OF_THE_NODE or sign_of(message) == CONTAINER_FAILED:
        return NOT_STARTED
    return None


def is_silent(word: str, message: str) -> bool:
    """Whether the kubelet says only that it waits to pull again: what it said before holds."""
    return word == "ImagePullBackOff" and "Err" not in message
