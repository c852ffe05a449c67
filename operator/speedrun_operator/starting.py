"""The start: until the API server answers, serves our resource and says which cluster it is."""

from __future__ import annotations

import asyncio
import logging
import time

from speedrun_operator.api.names import cluster8
from speedrun_operator.crd import CrdWatch
from speedrun_operator.kube.access import Access, AccessError
from speedrun_operator.kube.client import ApiError, Kube, NotFound, Refused, Unavailable
from speedrun_operator.kube.served import GROUP_PATH, Served
from speedrun_operator.kube.transport import tls_context
from speedrun_operator.settings import Settings

logger = logging.getLogger("speedrun_operator")
RETRY_FIRST, RETRY_LONGEST = 5.0, 60.0
ASKED_LONGEST = 3600.0
RIGHTS_PATIENCE_SECONDS = 60.0
_sleep = asyncio.sleep


async def cluster_of(kube: Kube, held: Access, settings: Settings, crd: CrdWatch) -> str:
    """cluster8, once the API server answers and serves our resource.

    A cluster that is still being made has no kubeconfig, and no API server: that is waited for. Raises AccessError that
    does not pass, and Refused, for want of rights or of a credential that is taken (401) only after a minute: an API
    server that has just started has not read them yet.
    """
    patience = time.monotonic() + RIGHTS_PATIENCE_SECONDS
    pause = RETRY_FIRST
    while True:
        wait = RETRY_FIRST
        try:
            try:
                tls_context(await held.current())
                await kube.request("GET", GROUP_PATH)
            except NotFound:
                await crd.found(Served.MISSING)
            else:
                await crd.found(Served.UNPUBLISHED)
                return cluster8(settings.cluster_id or await kube.cluster_uid())
        except AccessError as error:
            if not error.passing:
                raise
            # The platform, or whatever else gives credentials, is asked less and less; the API server is near.
            wait = max(pause, error.retry_after or 0.0)
            pause = min(RETRY_LONGEST, 2 * pause)
            logger.warning("%s", error)
        except (Unavailable, Refused) as error:
            if _is_final(error, time.monotonic() > patience):
                raise Refused(error.status, str(error)) from error
            wait = max(RETRY_FIRST, error.retry_after or 0.0)
            logger.warning("%s", error)
        wait = min(ASKED_LONGEST, wait)
        logger.info("tried again in %.0f s", wait)
        await _sleep(wait)


def _is_final(error: ApiError, patience_over: bool) -> bool:
    """Whether waiting helps no more."""
    if error.status in (401, 403):
        return patience_over
    return isinstance(error, Refused)
