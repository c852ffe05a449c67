"""The settings of the Andromeda Platform API."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

HTTPS = r"^(https://[A-Za-z0-9.:\[\]_-]+(/[A-Za-z0-9._~/-]*)?)?$"
ID = r"^([A-Za-z0-9][A-Za-z0-9._-]{0,127})?$"
PRINTABLE = r"^[!-~]*$"


class PlatformSettings(BaseModel):
    """The Andromeda Platform API. With an address and a cluster: readiness, and outside of it the kubeconfig, too."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: Annotated[str, StringConstraints(pattern=HTTPS)] = Field(
        default="", description="Address of the Platform API, https://…; empty: it is not asked."
    )
    business_url: Annotated[str, StringConstraints(pattern=HTTPS)] = Field(
        default="", description="Address of the Business API, which knows the keys of this account; for `check` alone."
    )
    organization: Annotated[str, StringConstraints(pattern=ID)] = Field(
        default="", description="Id of the organization (also --organization)."
    )
    cluster: Annotated[str, StringConstraints(pattern=ID)] = Field(
        default="", description="Id of the cluster (also --cluster)."
    )
    readiness_only: bool = Field(
        default=False, description="Reach the API server otherwise: the operator runs in the cluster itself."
    )
    token_file: Path | None = Field(default=None, description="File with a person's token, which something renews.")
    token_variable: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] = Field(
        default="ANDROMEDA_TOKEN", description="Environment variable with the token, if nothing else is named."
    )
    token_command: list[str] = Field(
        default_factory=list, description="Command that prints the token, bare or as an ExecCredential; a JSON list."
    )
    refresh_token_file: Path | None = Field(
        default=None, description="File with an OIDC refresh token (0600); a new one is written back."
    )
    issuer: Annotated[str, StringConstraints(pattern=HTTPS)] = Field(
        default="", description="OIDC issuer of the refresh token."
    )
    client_id: Annotated[str, StringConstraints(pattern=PRINTABLE)] = Field(
        default="", description="OIDC client that the refresh token is of."
    )
    client_secret_file: Path | None = Field(default=None, description="File with that client's secret, if it has one.")
    ca_file: Path | None = Field(
        default=None, description="Authorities to trust instead of the system's, for the APIs and the issuer."
    )
    exec_commands: list[str] = Field(
        default_factory=lambda: ["andromeda", "kubelogin", "kubectl-oidc_login"],
        description="Credential plugins that a fetched kubeconfig may run on this machine; a JSON list.",
    )
    poll_seconds: Annotated[float, Field(ge=1)] = Field(default=30, description="Period of the looks at readiness.")
    warn_seconds: Annotated[float, Field(ge=0)] = Field(
        default=600,
        description="So long before its end the token is renewed; one that is not is said on the live Speedruns.",
    )
    remind_seconds: Annotated[float, Field(ge=1)] = Field(
        default=900,
        description="Idle for so long, an event says that an on-demand cluster is billed until it is ended.",
    )

    @field_validator("token_file", "refresh_token_file", "client_secret_file", "ca_file")
    @classmethod
    def _home(cls, value: Path | None) -> Path | None:
        return value.expanduser() if value is not None else None

    @property
    def in_use(self) -> bool:
        return bool(self.url and self.cluster)

    @model_validator(mode="after")
    def _whole(self) -> PlatformSettings:
        if self.cluster and not self.url:
            raise ValueError("cluster is named, but not the API's address: set platform.url")
        if self.url and self.cluster and not self.organization:
            raise ValueError("a cluster needs its organization: set platform.organization (--organization)")
        if self.refresh_token_file and not (self.issuer and self.client_id):
            raise ValueError("a refresh token needs platform.issuer and platform.client_id")
        given = [self.token_file is not None, bool(self.token_command), self.refresh_token_file is not None]
        if sum(given) > 1:
            raise ValueError("give one of token_file, token_command and refresh_token_file")
        return self
