"""Credentials for the API server: the pod's service account, or a kubeconfig.

A kubeconfig that is named must exist and be whole; there is no silent fall-back to another cluster.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from kubernetes.aio.client import Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config

SERVICE_ACCOUNT_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class AccessError(Exception):
    """No usable credentials. The message says which source was tried and what to do."""


@dataclass(frozen=True)
class Credentials:
    """What another HTTP client needs to reach the same API server in the same way. Paths are of PEM files."""

    server: str
    ca_path: str | None
    insecure: bool
    certificate_path: str | None
    private_key_path: str | None
    scheme: str | None
    token: str | None = field(repr=False)


async def credentials(kubeconfig: str | None, context: str | None) -> Credentials:
    """What the source says now; read again at each call. Raises AccessError."""
    configuration = await load(kubeconfig, context)
    header = await configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
    scheme, _, token = (header or "").rpartition(" ")
    return Credentials(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
        scheme=scheme or ("Bearer" if token else None),
        token=token or None,
    )


def own_namespace() -> str | None:
    """The namespace that this process runs in as a pod; None: it is no pod."""
    try:
        return SERVICE_ACCOUNT_NAMESPACE.read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


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
    except (ConfigException, yaml.YAMLError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        source = named or "the pod's service account"
        raise AccessError(f"cannot use {source} to reach the API server: {error}") from error
    return configuration


def _exists(path: str) -> bool:
    return any(Path(part).expanduser().is_file() for part in path.split(os.pathsep))
