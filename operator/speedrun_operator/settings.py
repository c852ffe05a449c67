"""Settings of the operator: flags, environment (SPEEDRUN_…, nested by two underscores) and a YAML file, in this order.

`speedrun-operator run --login.host=... ` is `SPEEDRUN_LOGIN__HOST=...` is `login: {host: ...}` in the file that
`--config` or SPEEDRUN_CONFIG names.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    EnvSettingsSource,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from speedrun_operator import login_settings
from speedrun_operator.login_settings import SHARED_PATH, NamespaceLogin
from speedrun_operator.own_settings import Address, DeploymentSettings, MetricsSettings
from speedrun_operator.platform.settings import PlatformSettings

PREFIX = "SPEEDRUN_"
PRINTABLE = r"^[!-~]*$"


Namespace = Annotated[str, StringConstraints(max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]


PartitionName = Annotated[str, StringConstraints(max_length=128, pattern=r"^([A-Za-z0-9_][A-Za-z0-9_.-]*)?$")]


RecipeName = Annotated[str, StringConstraints(max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
# A star anywhere else would let in what nobody thought of: https://host/team* is https://host/team-of-others, too.
Repository = Annotated[str, StringConstraints(max_length=1024, pattern=r"^[^*\s]+(/\*)?$")]


class Group(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LoginSettings(Group):
    """The SUNK login service, reached by SSH. Without a host, Speedruns stay Pending."""

    host: Annotated[str, StringConstraints(pattern=PRINTABLE)] = Field(
        default="", description="Host name or address of the login service or the SSH gateway."
    )
    port: Annotated[int, Field(gt=0, lt=65536)] = Field(default=22, description="Its SSH port.")
    user: Annotated[str, StringConstraints(pattern=PRINTABLE)] = Field(
        default="", description="Login name; on Andromeda <cluster-id>.<username>."
    )
    key_file: Path | None = Field(default=None, description="File with the private key, without a passphrase.")
    known_hosts_file: Path | None = Field(default=None, description="File with the host keys to accept.")
    connect_timeout_seconds: Annotated[float, Field(gt=0)] = Field(
        default=200, description="For a connection; a per-user login pod may take three minutes to start."
    )
    max_channels: Annotated[int, Field(ge=1, le=8)] = Field(
        default=8,
        description="Commands at once on the one connection, at most 8; sshd's MaxSessions is 10 by default.",
    )

    @property
    def missing(self) -> list[str]:
        """Names of settings without which nothing can be reached."""
        given = {
            "login.host": self.host,
            "login.user": self.user,
            "login.key_file": self.key_file,
            "login.known_hosts_file": self.known_hosts_file,
        }
        return [name for name, value in given.items() if not value]


class SlurmSettings(Group):
    """How jobs are laid out on the cluster."""

    root: Annotated[str, StringConstraints(pattern=SHARED_PATH)] = Field(
        default="~/speedruns", description="Directory for ledgers and caches on the shared file system."
    )
    python: Annotated[str, StringConstraints(pattern=SHARED_PATH.replace("^(", "^(python3$|"))] = Field(
        default="python3", description="Python on the nodes, with torch, for recipes that run our trainer."
    )
    gpu_partition: PartitionName = Field(
        default="",
        description="Partition of GPU jobs that name none. Empty: chosen by what sinfo says the cluster has.",
    )
    partition: PartitionName = Field(
        default="", description="Partition of jobs that name none. Empty: Slurm's default."
    )
    poll_seconds: Annotated[float, Field(ge=1)] = Field(default=10, description="Period of the polls.")
    lost_after_seconds: Annotated[float, Field(ge=10)] = Field(
        default=300, description="A job that no witness knows for so long is lost."
    )
    never_after_seconds: Annotated[float, Field(ge=10)] = Field(
        default=60, description="A job that waits for what can never be is given up after so long."
    )
    release_seconds: Annotated[float, Field(ge=1)] = Field(
        default=120, description="A deletion waits at most so long for its jobs to be cancelled."
    )


SUNK_GRACE_SECONDS = 25  # Slurm's KillWait (30) minus 5


class PodSettings(Group):
    """How pods are made. Speedruns of backend Pods stay Pending until it is enabled."""

    enabled: bool = Field(default=False, description="Whether this operator runs Speedruns of backend Pods.")
    image: Annotated[str, StringConstraints(pattern=PRINTABLE)] = Field(
        default="", description="Image of pods that name none: the trainer image."
    )
    python: Annotated[str, StringConstraints(pattern=r"^(python3$|/)[A-Za-z0-9_./@+-]*$")] = Field(
        default="python3", description="Python in the image or the cache, with torch, for recipes of our trainer."
    )
    cache_volume_claim: str = Field(
        default="", description="PersistentVolumeClaim for caches and logs in each namespace. Empty: none."
    )
    user_id: Annotated[int, Field(gt=0)] = Field(default=1000, description="User and group that containers run as.")
    gpu_resource: str = Field(default="nvidia.com/gpu", description="The resource that a node's GPUs are.")
    gpu_label_keys: Annotated[list[str], NoDecode] = Field(
        default_factory=lambda: [
            "nvidia.com/gpu.product",
            "gpu.nvidia.com/class",
            "gpu.nvidia.com/model",
            "node.kubernetes.io/instance-type",
        ],
        description="Labels of nodes that may tell the GPU type, with commas between; case is ignored.",
    )
    scheduler_name: str = Field(default="", description="Scheduler of pods that name none. Empty: the cluster's own.")
    sunk: bool = Field(default=False, description="Whether that is SUNK's pod scheduler: it wants its annotations.")
    grace_seconds: Annotated[int, Field(ge=1, le=3600)] = Field(
        default=20, description="From SIGTERM to SIGKILL. SUNK wants less than its Slurm's KillWait (30) minus 5."
    )
    poll_seconds: Annotated[float, Field(ge=1)] = Field(default=5, description="Period of reading logs.")
    give_up_seconds: Annotated[float, Field(ge=0)] = Field(
        default=300, description="A pod whose image or configuration is at fault is given up after so long."
    )

    @field_validator("gpu_label_keys", mode="before")
    @classmethod
    def _keys(cls, value: object) -> object:
        return _listed(value)

    @model_validator(mode="after")
    def _grace(self) -> PodSettings:
        if self.sunk and self.grace_seconds >= SUNK_GRACE_SECONDS:
            raise ValueError(f"grace_seconds must be below {SUNK_GRACE_SECONDS} where sunk is set")
        return self


class PrepareSettings(Group):
    """Jobs that make containers, code and data ready. They hold no GPU."""

    partition: str = Field(default="", description="Their partition. Empty: that of the training job.")
    cpus: Annotated[int, Field(ge=1)] = Field(default=8, description="CPUs of such a job.")
    memory_gib: Annotated[int, Field(ge=1)] = Field(default=32, description="Memory of such a job, in GiB.")
    minutes: Annotated[int, Field(ge=1)] = Field(default=120, description="Its time limit.")


class CacheSettings(Group):
    """What is kept on the shared file system: cache entries, and the ledgers of jobs that ended."""

    most_gib: Annotated[int, Field(ge=0)] = Field(
        default=0, description="The cache takes at most so many GiB; what was used least lately goes. 0: no limit."
    )
    ledger_days: Annotated[int, Field(ge=0)] = Field(
        default=0, description="Ledgers of jobs that ended are removed after so many days. 0: never."
    )
    period_seconds: Annotated[float, Field(ge=5)] = Field(default=3600, description="How often that is looked at.")


class WatchSettings(Group):
    """Which Speedruns."""

    namespaces: Annotated[list[Namespace], NoDecode] = Field(
        default_factory=list, description="Namespaces to watch, with commas between. Empty: all of them."
    )
    resync_seconds: Annotated[float, Field(ge=5)] = Field(default=180, description="Period of full re-lists.")

    @field_validator("namespaces", mode="before")
    @classmethod
    def _names(cls, value: object) -> object:
        return _listed(value)


def _listed(value: object) -> object:
    return [each.strip() for each in value.split(",") if each.strip()] if isinstance(value, str) else value


class PolicySettings(Group):
    """What people may run: whoever may create a Speedrun runs code as the login user."""

    allowed_recipes: Annotated[list[RecipeName], NoDecode] = Field(
        default_factory=list, description="Recipes that may be run, with commas between. Empty: all of them."
    )
    allowed_repositories: Annotated[list[Repository], NoDecode] = Field(
        default_factory=list,
        description="Repositories that code may come from, besides the recipes' own, with commas between; a URL with "
        "/* behind it is all below it. Empty: all of them.",
    )
    custom_recipes: bool = Field(default=True, description="Whether a Speedrun may bring a recipe of its own.")
    foreign_sources: bool = Field(
        default=True, description="Whether code may be run that is not the recipe's own, or an image of one's own."
    )
    own_namespace: bool = Field(
        default=False, description="Whether Speedruns are run in the namespace that the operator itself runs in."
    )

    @field_validator("allowed_recipes", "allowed_repositories", mode="before")
    @classmethod
    def _names(cls, value: object) -> object:
        return [each.strip() for each in value.split(",") if each.strip()] if isinstance(value, str) else value


class Settings(BaseSettings):
    """All settings of `speedrun-operator run` and `check`."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        nested_model_default_partial_update=True,
    )

    kubeconfig: str | None = Field(default=None, description="Kubeconfig to use instead of the pod's service account.")
    context: str | None = Field(default=None, description="Context of the kubeconfig.")
    cluster_id: str | None = Field(
        default=None, description="Tells this cluster's jobs from others'. Absent: the kube-system namespace's UID."
    )
    login: LoginSettings = Field(default_factory=LoginSettings)
    logins: dict[Namespace, NamespaceLogin] = Field(
        default_factory=dict,
        description="Logins of namespaces: {namespace: {secret: NAME, root: PATH}}, as JSON. Empty: all use `login`; "
        "else only these namespaces are served by Slurm.",
    )
    logins_namespace: Namespace | None = Field(
        default=None, description="Namespace of the logins' Secrets. Absent: the one that the operator runs in."
    )
    logins_read_seconds: Annotated[float, Field(ge=1)] = Field(
        default=60, description="Period of reading the logins' Secrets: a changed one is taken up without a restart."
    )
    platform: PlatformSettings = Field(default_factory=PlatformSettings)
    slurm: SlurmSettings = Field(default_factory=SlurmSettings)
    pods: PodSettings = Field(default_factory=PodSettings)
    prepare: PrepareSettings = Field(default_factory=PrepareSettings)
    cache: CacheSettings = Field(default_factory=CacheSettings)
    watch: WatchSettings = Field(default_factory=WatchSettings)
    policy: PolicySettings = Field(default_factory=PolicySettings)
    metrics: MetricsSettings = Field(default_factory=MetricsSettings)
    deployment: DeploymentSettings = Field(default_factory=DeploymentSettings)
    health_address: Address = Field(default="127.0.0.1:8080", description="host:port of /healthz; empty: none.")
    log_format: Literal["json", "text"] = Field(default="json", description="Form of the operator's own log.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="Least level logged.")

    @model_validator(mode="after")
    def _together(self) -> Settings:
        if fault := login_settings.fault(self.logins, self.login.host, self.slurm.root):
            raise ValueError(fault)
        return self

    @property
    def roots(self) -> tuple[str, ...]:
        """The directories of all logins."""
        own = [each.root or self.slurm.root for each in self.logins.values()]
        return tuple(dict.fromkeys(own or [self.slurm.root]))


class SettingsFault(Exception):
    """Settings that cannot be used: each fault with its name and what it should be."""


def load(arguments: Sequence[str], config: str | None, parser: argparse.ArgumentParser) -> Settings:
    """Settings from flags, then the environment, then the file.

    `parser` has the command's own flags; the settings' come to them. `--help` in `arguments` prints all and exits, an
    unknown flag says so and exits. Raises SettingsFault.
    """
    file = _file(config or os.environ.get(f"{PREFIX}CONFIG"))
    _refuse_unknown(os.environ)

    class Layered(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            flags: CliSettingsSource[Any] = CliSettingsSource(
                settings_cls,
                cli_parse_args=list(arguments),
                root_parser=parser,
                cli_kebab_case=True,
                cli_hide_none_type=True,
            )
            return flags, EnvSettingsSource(settings_cls), InitSettingsSource(settings_cls, init_kwargs=file)

    try:
        return Layered()
    except ValidationError as invalid:
        faults = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in invalid.errors(include_url=False)]
        raise SettingsFault("; ".join(faults)) from invalid
    except SettingsError as error:
        raise SettingsFault(f"{error}: {error.__cause__ or 'see the documentation'}") from error


def _file(path: str | None) -> dict[str, Any]:
    if not path:
        return {}
    try:
        file = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingsFault(f"settings file {path}: {error}") from error
    if not isinstance(file, dict) or not all(isinstance(name, str) for name in file):
        raise SettingsFault(f"settings file {path}: must be a mapping of setting to value")
    return file


def _refuse_unknown(environment: Mapping[str, str]) -> None:
    """Only names with two underscores: others may be somebody else's, as SPEEDRUN_OPERATOR_SERVICE_HOST in a pod."""
    for name in environment:
        group, nested, _ = name.upper().removeprefix(PREFIX).lower().partition("__")
        if name.upper().startswith(PREFIX) and nested and group not in Settings.model_fields:
            known = ", ".join(Settings.model_fields)
            raise SettingsFault(f"{name} in the environment: no setting is called {group}; there are: {known}")
