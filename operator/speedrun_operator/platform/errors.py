"""What may go wrong with the Platform API, by what to do about it. No message holds a token or a body with secrets.

PlatformError
├── Unanswered     no answer, 429 or a server's fault: the same may go through later (`retry_after` seconds)
└── Denied         a person has to do something: sign in, grant a permission, correct a setting
"""

from __future__ import annotations


class PlatformError(Exception):
    """`status` is the HTTP status, 0 where there is none. The message says what to do."""

    def __init__(self, message: str, *, status: int = 0, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


class Unanswered(PlatformError):
    """Try later."""


class Denied(PlatformError):
    """Somebody must change something first."""


SIGN_IN = "sign in as a person and give the operator that token: there are no API keys"
SERVICE_ACCOUNT = f"a service account's token is refused here; {SIGN_IN}"
GRANTS = {
    "ssh-access": (
        "Slurm SSH needs membership in the organization and the permission clusters.ssh; a grant that shares one "
        "cluster gives its kubeconfig and no SSH"
    ),
    "kubeconfig": "the kubeconfig needs the permission clusters.read, or a grant on this cluster",
    "options": "the options need the permission clusters.read in the organization",
}
READ = "clusters need the permission clusters.read in the organization"


def denied(status: int, part: str, what: str, said: str, service_account: bool) -> Denied:
    """A 401, 403, 404 or another 4xx to the route whose last part is `part`. `said`: the server's own short words."""
    told = f" ({said})" if said else ""
    if status == 401 and service_account:
        return Denied(f"{what}: 401{told}: {SERVICE_ACCOUNT}", status=status)
    if status == 401:
        return Denied(
            f"{what}: 401{told}: the token is not accepted: it has expired or is for another API; {SIGN_IN}",
            status=status,
        )
    if status == 403:
        about_us = "service account" in said.lower().replace("-", " ") or service_account
        remedy = SERVICE_ACCOUNT if about_us else GRANTS.get(part, READ)
        hint = "" if about_us else "; or the token is a service account's, which is refused: a person's is needed"
        return Denied(f"{what}: 403{told}: {remedy}{hint}", status=status)
    if status == 404:
        return Denied(
            f"{what}: 404{told}: no such cluster or organization, or it is not shown to this account; compare the ids "
            "with `speedrun-operator clusters`, and platform.url with the documents",
            status=status,
        )
    return Denied(
        f"{what}: {status}{told}: this version of the operator asks in a way that the API refuses", status=status
    )
