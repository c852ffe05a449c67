"""A login as its Secret says: read by name, one `get` for all of it, in the operator's own namespace.

Not in the team's: whoever may read Secrets there, or start a pod, would have the key, and whoever may write them could
have jobs run as somebody else whom the operator's network reaches.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field

from speedrun_operator.api.phases import Reason
from speedrun_operator.kube.access import own_namespace
from speedrun_operator.kube.client import Kube, NotFound, Refused
from speedrun_operator.lifecycle.situation import Waiting
from speedrun_operator.login import Login, LoginTarget, NotRun
from speedrun_operator.login_settings import NamespaceLogin
from speedrun_operator.settings import Settings

USER, KEY, KNOWN_HOSTS = "user", "ssh-privatekey", "known_hosts"
LOGIN_PATIENCE_SECONDS = 20.0  # then status says that the login is starting; commands are asked for again


class NoNamespace(Exception):
    """It is not known where the Secrets are; the message says what to set."""


@dataclass(frozen=True)
class Team:
    """One login of `logins`: its Secret's name, the namespaces that have it, the root of its jobs."""

    name: str
    namespaces: tuple[str, ...]
    root: str
    settings: NamespaceLogin = field(repr=False)


def teams(settings: Settings) -> tuple[Team, ...]:
    """Every login that namespaces have of their own."""
    found: dict[str, Team] = {}
    for namespace, login in settings.logins.items():
        before = found[login.secret].namespaces if login.secret in found else ()
        root = login.root or settings.slurm.root
        found[login.secret] = Team(login.secret, (*before, namespace), root, login)
    return tuple(found.values())


def secrets_namespace(settings: Settings) -> str:
    """Where the Secrets are. Raises NoNamespace."""
    namespace = settings.logins_namespace or own_namespace()
    if namespace is None:
        raise NoNamespace(
            "logins: the operator is no pod, so it has no namespace of its own: set logins_namespace to that of their "
            "Secrets"
        )
    return namespace


async def read(
    kube: Kube, settings: Settings, namespace: str, team: Team, *, patience: float = LOGIN_PATIENCE_SECONDS
) -> LoginTarget | Waiting:
    """The login, or what is wrong with its Secret. Raises ApiError where nobody answers."""
    which = f"Secret {team.name} in namespace {namespace}"
    try:
        found = await kube.request("GET", f"/api/v1/namespaces/{namespace}/secrets/{team.name}")
    except NotFound:
        return Waiting(
            Reason.SECRET_MISSING.value,
            f"the login's {which} is not there: kubectl create secret generic {team.name} -n {namespace} "
            f"--from-literal={USER}=NAME --from-file={KEY}=FILE --from-file={KNOWN_HOSTS}=FILE",
        )
    except Refused as error:
        return Waiting(
            Reason.SECRET_FORBIDDEN.value,
            f"the operator may not read the login's {which} (HTTP {error.status}): grant its account `get` on it",
        )
    data = {key: base64.b64decode(value) for key, value in (found.get("data") or {}).items()}
    wanted = (USER, KEY) if settings.login.known_hosts_file else (USER, KEY, KNOWN_HOSTS)
    if missing := [key for key in wanted if not data.get(key, b"").strip()]:
        has = ", ".join(sorted(data)) or "nothing"
        return Waiting(
            Reason.SECRET_KEY_MISSING.value, f"the login's {which} has no {' and no '.join(missing)}; it has: {has}"
        )
    known_hosts = data[KNOWN_HOSTS].decode(errors="replace") if KNOWN_HOSTS in data else settings.login.known_hosts_file
    assert known_hosts is not None
    try:
        target = LoginTarget(
            host=team.settings.host or settings.login.host,
            port=team.settings.port or settings.login.port,
            user=data[USER].decode().strip(),
            key=data[KEY],
            known_hosts=known_hosts,
            connect_timeout=settings.login.connect_timeout_seconds,
            max_channels=settings.login.max_channels,
            patience=patience,
            origin=which,
        )
        Login(target).check_files()
    except NotRun as unusable:
        return Waiting(unusable.reason.value, unusable.message)
    except ValueError as error:
        said = "user is no text" if isinstance(error, UnicodeDecodeError) else str(error)
        return Waiting(Reason.SECRET_UNUSABLE.value, f"the login's {which} cannot be used: {said}")
    return target
