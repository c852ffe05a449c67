"""`check`'s look at the Platform API: the token, the cluster's readiness, the login's key."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

from speedrun_operator.api.cluster import ClusterState, Ready
from speedrun_operator.api.status import rfc3339
from speedrun_operator.credentials.faults import AccessError
from speedrun_operator.findings import Finding
from speedrun_operator.lifecycle.readiness import awaited
from speedrun_operator.outside import login_fault
from speedrun_operator.platform.client import PlatformApi
from speedrun_operator.platform.errors import PlatformError, Unanswered
from speedrun_operator.platform.keys import key_report
from speedrun_operator.platform.readiness import ask
from speedrun_operator.platform.tokens import Token
from speedrun_operator.settings import Settings


async def platform_findings(api: PlatformApi, settings: Settings) -> AsyncIterator[Finding]:
    """A finding each; the rest is left out where the token already is at fault."""
    try:
        yield token_finding(await api.tokens.current(), str(api.tokens.source), settings.platform.warn_seconds)
    except AccessError as error:
        yield Finding("token", None if error.passing else False, str(error))
        return
    try:
        facts = await ask(api, settings.platform.cluster)
    except PlatformError as error:
        yield Finding("cluster", None if isinstance(error, Unanswered) else False, str(error))
        return
    missing = awaited(facts)
    yield Finding("cluster", missing is None, f"{missing.reason}: {missing.message}" if missing else summary(facts))
    if not facts.ssh.known and facts.ssh.message:
        yield Finding("ssh access", None, facts.ssh.message)
    if fault := login_fault(settings):
        yield Finding("login user", False, fault)
    if settings.login.key_file is not None and not settings.logins:
        yield Finding("ssh key", *await key_report(api, settings.platform.cluster, settings.login.key_file))


def token_finding(token: Token, source: str, warn_seconds: float) -> Finding:
    """Of which kind the token is, and how long it lasts."""
    if token.is_service_account:
        return Finding("token", False, f"{source}: a service account's token, which is refused; sign in as a person")
    if token.end is None:
        return Finding("token", True, f"{source}; it does not say when it runs out")
    left = token.end - datetime.now(UTC)
    told = f"{source}; until {rfc3339(token.end)}"
    if left <= timedelta(0):
        return Finding("token", False, f"{told}: it has run out; renew it where it comes from")
    if left < timedelta(seconds=warn_seconds):
        return Finding("token", True, f"{told}: it runs out soon; see that something renews it")
    return Finding("token", True, told)


def summary(facts: ClusterState) -> str:
    """The cluster in one line."""
    parts = (
        f"scheduler {facts.scheduler or 'unknown'}",
        f"Slurm {word(facts.slurm)}",
        f"storage {', '.join(facts.storage) or 'unknown'} {word(facts.storage_ready)}",
        f"SSH {word(facts.ssh)}",
    )
    return f"{facts.name or facts.cluster} is {facts.state or 'of unknown state'}: {', '.join(parts)}"


def word(part: Ready) -> str:
    return "unknown" if not part.known else "ready" if part.ready else "not ready"
