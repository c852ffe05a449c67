"""Settings about the operator itself: where it is looked at, and what it runs as."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints


def _host_and_port(value: str) -> str:
    host, _, port = value.rpartition(":")
    if value and not (host and port.isdecimal() and int(port) < 65536):
        raise ValueError("must be host:port")
    return value


Address = Annotated[str, AfterValidator(_host_and_port)]


class MetricsSettings(BaseModel):
    """/metrics for Prometheus, on an address of its own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    address: Address = Field(default="", description="host:port of /metrics; empty: none.")
    speedruns: Annotated[int, Field(ge=0)] = Field(
        default=1000,
        description="At most so many Speedruns have series of their own: live ones first, then those that finished "
        "last. All are counted.",
    )


class DeploymentSettings(BaseModel):
    """What the operator runs as: events about the operator itself go there, such as a CRD that is out of date."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, StringConstraints(max_length=253, pattern=r"^[a-z0-9.-]*$")] = Field(
        default="", description="Name of its Deployment. Empty: no such events."
    )
    namespace: Annotated[str, StringConstraints(max_length=63, pattern=r"^[a-z0-9-]*$")] = Field(
        default="", description="Its namespace. Empty: that of the pod's service account."
    )
