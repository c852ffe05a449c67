"""Proxies that the environment or a kubeconfig names: HTTP ones; what else is named is told, and not passed by."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from speedrun_operator.credentials.faults import AccessError


@contextmanager
def proxies_understood(whose: str) -> Iterator[None]:
    """While an HTTP client is made, which reads the environment. Raises AccessError."""
    try:
        yield
    except (ImportError, ValueError, httpx.InvalidURL) as error:
        raise AccessError(
            f"the proxy to {whose} cannot be used: {str(error).rstrip('.')}; look at HTTPS_PROXY, HTTP_PROXY, "
            "ALL_PROXY and NO_PROXY: http:// and https:// proxies are supported, SOCKS is not"
        ) from error
