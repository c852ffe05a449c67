"""Credentials for the API server: the pod's service account, or a kubeconfig.

A kubeconfig that is named must exist and be whole; there is no silent fall-back to another cluster.
"""

from __future__ import annotations

import os
from pathlib import Path

from kubernetes.aio.client import Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config


class AccessError(Exception):
    """No usable credentials. The message says which source was tried and what to do."""


async def load(kubeconfig: str | None, context: str | None) -> Configuration:
    """Where the API server is and how to speak to it.

    `kubeconfig` None means: KUBECONFIG if it is set, else the pod's service account if there is one, else
    ~/.kube/config. Raises AccessError.
    """
    configuration = Configuration()
    named = kubeconfig or os.environ.get("KUBECONFIG") or None
    try:
        if named is None and "KUBERNETES_SERVICE_HOST" in os.environ:
            load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
            return configuration
        path = named or str(Path.home() / ".kube" / "config")
        if not _exists(path):
            raise AccessError(f"no kubeconfig at {path}; name one with --kubeconfig or KUBECONFIG")
        await load_kube_config(  # type: ignore[no-untyped-call]
            config_file=path, context=context, client_configuration=configuration
        )
    except (ConfigException, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        source = named or "the pod's service account"
        raise AccessError(f"cannot use {source} to reach the API server: {error}") from error
    return configuration


def _exists(path: str) -> bool:
    return any(Path(part).expanduser().is_file() for part in path.split(os.pathsep))
