"""The settings of logins that namespaces have of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

SHARED_PATH = r"^(~$|~/|/)[A-Za-z0-9_./@+ -]*$"
OBJECT_NAME = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"


class NamespaceLogin(BaseModel):
    """The login of one namespace. Its Secret has user, ssh-privatekey and known_hosts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    secret: Annotated[str, StringConstraints(max_length=253, pattern=OBJECT_NAME)] = Field(
        description="Name of the Secret, in the operator's own namespace (or logins_namespace)."
    )
    root: Annotated[str, StringConstraints(pattern=SHARED_PATH)] | None = Field(
        default=None, description="As slurm.root, of this login's jobs. Absent: slurm.root."
    )
    host: Annotated[str, StringConstraints(pattern=r"^[!-~]+$")] | None = Field(
        default=None, description="As login.host. Absent: login.host."
    )
    port: Annotated[int, Field(gt=0, lt=65536)] | None = Field(
        default=None, description="As login.port. Absent: login.port."
    )


def fault(logins: Mapping[str, NamespaceLogin], host: str, root: str) -> str | None:
    """What is wrong with these logins together. `host`, `root`: what those have that name none."""
    by_secret: dict[str, tuple[str, NamespaceLogin]] = {}
    by_root: dict[str, str] = {}
    for namespace, login in logins.items():
        if not (login.host or host):
            return f"logins.{namespace} has no host: set login.host, or logins.{namespace}.host"
        other, same = by_secret.setdefault(login.secret, (namespace, login))
        if same != login:
            return (
                f"logins.{other} and logins.{namespace} name the same Secret, {login.secret}, with another root, host "
                "or port: one login has one of each"
            )
        place = login.root or root
        holder = by_root.setdefault(place, login.secret)
        if place.startswith("/") and holder != login.secret:
            return (
                f"logins.{namespace} has the root {place} of another login: set logins.{namespace}.root to a "
                "directory that only its own user writes (one below ~ is in each user's own home)"
            )
    return None
