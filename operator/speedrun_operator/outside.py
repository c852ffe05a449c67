"""From the settings to the Platform API and the credentials of the API server: what `run`, `check` and others share."""

from __future__ import annotations

import ssl
from datetime import timedelta

from speedrun_operator.api.cluster import Lifecycle
from speedrun_operator.credentials.faults import AccessError
from speedrun_operator.credentials.lifetime import MARGIN
from speedrun_operator.kube.access import Access, Fetched, Source, local
from speedrun_operator.platform.client import PlatformApi, Where
from speedrun_operator.platform.errors import PlatformError, Unanswered
from speedrun_operator.platform.settings import PlatformSettings
from speedrun_operator.platform.tokens import FromCommand, FromFile, FromRefreshToken, FromVariable, Tokens
from speedrun_operator.platform.tokens import Source as TokenSource
from speedrun_operator.settings import Settings


def platform_api(settings: PlatformSettings) -> PlatformApi:
    """The client that the settings name. Raises AccessError for a file of authorities that cannot be used."""
    tls = _tls(settings)
    ahead = max(MARGIN, timedelta(seconds=settings.warn_seconds))
    where = Where(settings.url, settings.business_url, settings.organization)
    return PlatformApi(where, Tokens(_token_source(settings, tls), ahead), tls=tls)


def login_fault(settings: Settings) -> str | None:
    """What is wrong where the login is of another cluster than the one that the platform is asked about.

    Users of the SSH gateway are `<cluster-id>.<username>`.
    """
    user, cluster = settings.login.user, settings.platform.cluster
    named, dot, _ = user.partition(".")
    if not (settings.platform.in_use and dot) or user.startswith(f"{cluster}."):
        return None
    return f"login.user {user!r} is of cluster {named}, and platform.cluster is {cluster}: name one cluster in both"


def access(settings: Settings, api: PlatformApi | None) -> Access:
    """Credentials: of the kubeconfig that is named; else of the cluster that is named; else what this machine has."""
    return Access(_source(settings, api))


def _source(settings: Settings, api: PlatformApi | None) -> Source:
    platform = settings.platform
    if settings.kubeconfig or api is None or not platform.cluster or platform.readiness_only:
        return local(settings.kubeconfig, settings.context)

    async def fetch() -> str:
        try:
            return await api.kubeconfig(platform.cluster)
        except PlatformError as error:
            if error.status in (404, 409) and await _is_provisioning(api, platform.cluster):
                raise AccessError(
                    f"ClusterProvisioning: cluster {platform.cluster} has no kubeconfig yet", passing=True
                ) from error
            passing = isinstance(error, Unanswered)
            raise AccessError(str(error), passing=passing, retry_after=error.retry_after) from error

    origin = f"the Platform API's kubeconfig of cluster {platform.cluster}"
    return Fetched(origin, fetch, settings.context, frozenset(platform.exec_commands))


async def _is_provisioning(api: PlatformApi, cluster: str) -> bool:
    try:
        return (await api.cluster(cluster)).lifecycle is Lifecycle.PROVISIONING
    except PlatformError:
        return False


def _token_source(settings: PlatformSettings, tls: ssl.SSLContext | None) -> TokenSource:
    if settings.token_file:
        return FromFile(settings.token_file)
    if settings.token_command:
        return FromCommand(tuple(settings.token_command))
    if settings.refresh_token_file:
        return FromRefreshToken(
            settings.issuer, settings.client_id, settings.refresh_token_file, settings.client_secret_file, tls
        )
    return FromVariable(settings.token_variable)


def _tls(settings: PlatformSettings) -> ssl.SSLContext | None:
    if settings.ca_file is None:
        return None
    try:
        return ssl.create_default_context(cafile=str(settings.ca_file))
    except OSError as error:
        raise AccessError(f"platform.ca_file {settings.ca_file}: {error}") from error
