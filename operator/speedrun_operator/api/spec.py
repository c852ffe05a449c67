"""`spec` of a Speedrun: what a user asks for.

Field descriptions are the CRD's, so they are written for users. A recipe's own knowledge (target, GPUs, time limit)
has no default here: planning resolves it and `status.plan` shows it.
"""

from __future__ import annotations

from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StrictBool,
    StrictInt,
    StringConstraints,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

DNS_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
PARAMETER_NAME = r"^[A-Za-z][A-Za-z0-9_]*$"
SLURM_WORD = r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$"
SLURM_NODE = r"^[A-Za-z0-9_][A-Za-z0-9_.-]*(\[[0-9,-]+\])?$"
SLURM_CONSTRAINT = r"^[A-Za-z0-9_(\[][A-Za-z0-9_.&|*()\[\]-]*$"
ENV_NAME = r"^[A-Za-z_][A-Za-z0-9_]*$"
GPU_TYPE = r"^[A-Za-z0-9][A-Za-z0-9_-]*$"
OBJECT_NAME = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
DATA_KEY = r"^[._a-zA-Z0-9][-._a-zA-Z0-9]*$"
# Only transports that run nothing here (git would take `ext::COMMAND` for a repository, too), without a password.
_HOST, _URL_PATH = r"[A-Za-z0-9][A-Za-z0-9.-]*", r"[A-Za-z0-9_.~/%+-]+"
REPOSITORY = (
    rf"^(https?://{_HOST}(:[0-9]+)?/{_URL_PATH}|ssh://([A-Za-z0-9_.]+@)?{_HOST}(:[0-9]+)?/{_URL_PATH}"
    rf"|[A-Za-z0-9_.]+@{_HOST}:{_URL_PATH}|/[A-Za-z0-9_/.@+-]+)$"
)
REVISION = r"^[A-Za-z0-9_][A-Za-z0-9_+@#=-]*([./][A-Za-z0-9_+@#=-]+)*$"
SOURCE_PATH = r"^(~/|/)[A-Za-z0-9_./@+ -]*$"
KUBERNETES_NAME = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
LABEL_KEY = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
LABEL_VALUE = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
IMAGE = r"^[A-Za-z0-9][A-Za-z0-9._/:@-]*$"
QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"

SlurmWord = Annotated[str, StringConstraints(max_length=128, pattern=rf"({SLURM_WORD})|^$")]
NodeName = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=SLURM_NODE)]
ParameterName = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=PARAMETER_NAME)]
ParameterText = Annotated[str, StringConstraints(max_length=1024, pattern=r"^[^\x00]*$")]


def _no_text(value: Any) -> Any:
    """A file is held to what the API server takes, where a number is no text."""
    if isinstance(value, str):
        raise PydanticCustomError("number_type", "Input should be a number, not text")
    return value


Number = Annotated[Decimal, PlainSerializer(float, return_type=float)]


class Model(BaseModel):
    """camelCase outside, snake_case inside; immutable; unknown fields are an error."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="forbid")


class Backend(StrEnum):
    SLURM = "Slurm"
    PODS = "Pods"


class KeyRef(Model):
    """One key of an object in the Speedrun's own namespace."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=OBJECT_NAME)] = Field(
        description="Name of the object, in the Speedrun's namespace."
    )
    key: Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=DATA_KEY)] = Field(
        description="Which of its keys."
    )


class RegistryRef(KeyRef):
    """Credentials of container registries, as `kubectl create secret docker-registry` makes them."""

    key: Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=DATA_KEY)] = Field(
        default=".dockerconfigjson", description="Which of its keys."
    )


class Patch(Model):
    """A patch as `git diff` makes it."""

    config_map_ref: KeyRef = Field(description="The ConfigMap that holds it.")


class Source(Model):
    """What is run instead of the recipe's own code. Resolved once, before anything is submitted."""

    repository: Annotated[str, StringConstraints(max_length=1024, pattern=rf"({REPOSITORY})|^$")] = Field(
        default="",
        description="A git repository: https://, ssh://, user@host:path, or an absolute path on the cluster's shared "
        "file system. Empty: the recipe's own.",
    )
    revision: Annotated[str, StringConstraints(max_length=255, pattern=rf"({REVISION})|^$")] = Field(
        default="",
        description="A commit (40 characters), branch, tag, pull/N/head or refs/... Empty: the recipe's own revision, "
        "or HEAD of another repository.",
    )
    path: Annotated[str, StringConstraints(max_length=1024, pattern=rf"({SOURCE_PATH})|^$")] = Field(
        default="", description="A checkout on the cluster's shared file system, instead of repository and revision."
    )
    patch: Patch | None = Field(default=None, description="Applied to the code before it runs.")
    secret_ref: KeyRef | None = Field(
        default=None,
        description="For a private repository: a Secret with a token (or user:token) for https://, or a private SSH "
        "key without a passphrase.",
    )

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.path and (self.repository or self.revision or self.secret_ref):
            raise ValueError("path excludes repository, revision and secretRef: the checkout is used as it is")
        if self.secret_ref and self.repository.startswith(("http://", "/")):
            raise ValueError("secretRef needs a repository of https://, ssh:// or user@host:path")
        return self


class Prepare(StrEnum):
    """Who makes the container, the code, the data and the downloads ready."""

    SEPARATE = "Separate"
    INLINE = "Inline"


class RecipeRef(Model):
    """Which recipe, with which parameters."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=DNS_LABEL)] = Field(
        description="A recipe that ships with the operator: gpt2-small, modded-nanogpt, replay or smoke."
    )
    parameters: Annotated[dict[ParameterName, StrictInt | ParameterText], Field(max_length=32)] = Field(
        default_factory=dict,
        description="Values for the recipe's declared parameters: whole numbers, or strings (write 0.003 as '0.003').",
    )
    source: Source | None = Field(default=None, description="Code to run instead of the recipe's own.")


class Gpus(Model):
    """GPUs of one allocation, all on one node."""

    type: Annotated[str, StringConstraints(max_length=63, pattern=GPU_TYPE)] | None = Field(
        default=None,
        description="GPU model, such as H100. Absent: what the recipe says.",
    )
    count: Annotated[StrictInt, Field(ge=0, le=64)] | None = Field(
        default=None, description="GPUs of one allocation. 0 runs without GPUs. Absent: what the recipe says."
    )


class SlurmOptions(Model):
    """Passed to sbatch as they are; empty means sbatch's own default."""

    partition: SlurmWord = Field(default="", description="Partition. Empty: the setting, else the cluster's default.")
    account: SlurmWord = Field(default="", description="Account to charge.")
    qos: SlurmWord = Field(default="", description="Quality of service.")
    reservation: SlurmWord = Field(default="", description="Reservation to run in.")
    constraint: Annotated[str, StringConstraints(max_length=256, pattern=rf"({SLURM_CONSTRAINT})|^$")] = Field(
        default="", description="Node features, as sbatch's --constraint."
    )
    node_list: Annotated[list[NodeName], Field(max_length=64)] = Field(
        default_factory=list, description="Nodes that must be part of the allocation."
    )
    exclude: Annotated[list[NodeName], Field(max_length=64)] = Field(
        default_factory=list, description="Nodes that must not be used."
    )
    nice: Annotated[StrictInt, Field(ge=0, le=2147483645)] = Field(
        default=0, description="Lowers the job's priority by this number (sbatch's --nice)."
    )
    registry_secret_ref: RegistryRef | None = Field(
        default=None, description="A Secret with credentials of the registry that the container's base image is in."
    )
    prepare: Prepare = Field(
        default=Prepare.SEPARATE,
        description="Separate: jobs of their own, which hold no GPU, make container, code and data ready. Inline: the "
        "training job does it, while it holds its GPUs.",
    )


class Telemetry(Model):
    """Samples of the GPUs while a job runs."""

    period_seconds: Annotated[StrictInt, Field(ge=0, le=3600)] = Field(
        default=10, description="Seconds from one sample to the next; 0 takes none."
    )


class EnvSource(Model):
    """Where a variable's value comes from."""

    secret_key_ref: KeyRef = Field(description="The Secret that holds it.")


KubernetesName = Annotated[str, StringConstraints(max_length=253, pattern=rf"({KUBERNETES_NAME})|^$")]
LabelKey = Annotated[str, StringConstraints(min_length=1, max_length=317, pattern=LABEL_KEY)]
LabelValue = Annotated[str, StringConstraints(max_length=63, pattern=LABEL_VALUE)]
Quantity = Annotated[str, StringConstraints(min_length=1, max_length=32, pattern=QUANTITY)]
Quantities = Annotated[dict[LabelKey, Quantity], Field(max_length=16)]


class Resources(Model):
    """As of a container."""

    requests: Quantities = Field(default_factory=dict, description="What the scheduler keeps for it.")
    limits: Quantities = Field(default_factory=dict, description="What it may use at most.")


class Toleration(Model):
    """As of a pod."""

    key: Annotated[str, StringConstraints(max_length=317, pattern=rf"({LABEL_KEY})|^$")] = Field(
        default="", description="The taint's key; empty with Exists means all."
    )
    operator: Literal["Exists", "Equal"] = Field(default="Equal", description="How key and value are compared.")
    value: LabelValue = Field(default="", description="The taint's value.")
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = Field(
        default="", description="The taint's effect; empty means all."
    )
    toleration_seconds: Annotated[StrictInt, Field(ge=0, le=2592000)] | None = Field(
        default=None, description="With NoExecute: how long it is tolerated. Absent: for ever."
    )


class PodOptions(Model):
    """Options of the pod; empty means the operator's setting."""

    image: Annotated[str, StringConstraints(max_length=1024, pattern=rf"({IMAGE})|^$")] = Field(
        default="", description="Image of its containers. Empty: the operator's setting."
    )
    image_pull_secrets: Annotated[list[KubernetesName], Field(max_length=8)] = Field(
        default_factory=list, description="Names of Secrets in the Speedrun's namespace with registry credentials."
    )
    resources: Resources = Field(
        default_factory=Resources, description="Beyond GPUs; what is absent is the recipe's, as requests."
    )
    annotations: Annotated[dict[LabelKey, Annotated[str, StringConstraints(max_length=4096)]], Field(max_length=32)] = (
        Field(default_factory=dict, description="Annotations of the pod.")
    )
    scheduler_name: KubernetesName = Field(default="", description="The pod's scheduler. Empty: the setting.")
    node_selector: Annotated[dict[LabelKey, LabelValue], Field(max_length=16)] = Field(
        default_factory=dict, description="Labels that the node must have."
    )
    tolerations: Annotated[list[Toleration], Field(max_length=16)] = Field(
        default_factory=list, description="Taints of nodes that it may run on; that of NVIDIA's GPUs is always there."
    )
    cache_volume_claim: KubernetesName = Field(
        default="",
        description="A PersistentVolumeClaim in the Speedrun's namespace for caches and logs. Empty: the setting; "
        "where that is empty, too, they go with the pod.",
    )
    shared_memory: Quantity = Field(default="16Gi", description="Size of /dev/shm.")
    queue_name: Annotated[str, StringConstraints(max_length=63, pattern=rf"({KUBERNETES_NAME})|^$")] = Field(
        default="", description="A LocalQueue of Kueue that admits the pod."
    )


class EnvVar(Model):
    """An environment variable of the runs."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=ENV_NAME)] = Field(
        description="Its name. SPEEDRUN_, PARAM_ and SLURM_ are reserved."
    )
    value: Annotated[str, StringConstraints(max_length=4096, pattern=r"^[^\x00]*$")] = Field(
        default="", description="Its value; $(RUN) and $(ARM) are replaced, $$(RUN) stays."
    )
    value_from: EnvSource | None = Field(
        default=None, description="Where the value comes from, instead of `value`; taken as it is."
    )

    @model_validator(mode="after")
    def _one(self) -> Self:
        if self.value and self.value_from:
            raise ValueError("give either value or valueFrom, not both")
        return self


class Spec(Model):
    """What is asked for. Only `recipe` is required."""

    recipe: RecipeRef = Field(description="What to run.")
    backend: Backend = Field(default=Backend.SLURM, description="Where it runs.")
    target: Annotated[Annotated[Number, Field(gt=0, le=1000)] | None, BeforeValidator(_no_text)] = Field(
        default=None, description="The metric's value to reach. Absent: the recipe's own target."
    )
    runs: Annotated[StrictInt, Field(ge=1, le=256)] = Field(
        default=1,
        description="Results wanted. May be raised until the Speedrun is finished.",
        json_schema_extra={"mutable": True},
    )
    runs_per_allocation: Annotated[StrictInt, Field(ge=1, le=64)] = Field(
        default=1, description="Runs of one allocation, one after the other in the same job."
    )
    parallelism: Annotated[StrictInt, Field(ge=1, le=64)] = Field(
        default=1, description="Allocations in flight at once.", json_schema_extra={"mutable": True}
    )
    gpus: Gpus | None = Field(default=None, description="GPUs of one allocation. Absent: what the recipe says.")
    time_limit_seconds: Annotated[StrictInt, Field(ge=60, le=2592000)] | None = Field(
        default=None,
        description="Time limit of one allocation in seconds, rounded up to minutes. Absent: the recipe's start-up and "
        "run time, the latter for each of runsPerAllocation.",
    )
    stall_timeout_seconds: Annotated[StrictInt, Field(ge=60, le=2592000)] | None = Field(
        default=None,
        description="No new line in the log for so long ends the allocation. Absent: a stall is only said.",
        json_schema_extra={"mutable": True},
    )
    backoff_limit: Annotated[StrictInt, Field(ge=0, le=20)] = Field(
        default=2,
        description="Allocations tried again in all, for failures of the infrastructure. Lost jobs are outside it.",
        json_schema_extra={"mutable": True},
    )
    active_deadline_seconds: Annotated[StrictInt, Field(ge=1, le=31536000)] | None = Field(
        default=None,
        description="From admission, suspended time left out; what is not finished then has failed.",
        json_schema_extra={"mutable": True},
    )
    ttl_seconds_after_finished: Annotated[StrictInt, Field(ge=0, le=315360000)] | None = Field(
        default=None,
        description="The Speedrun is deleted so long after it finished. Its ledger stays.",
        json_schema_extra={"mutable": True},
    )
    suspend: StrictBool = Field(
        default=False,
        description="True ends the jobs and submits none; finished runs are kept.",
        json_schema_extra={"mutable": True},
    )
    env: Annotated[list[EnvVar], Field(max_length=64)] = Field(
        default_factory=list, description="Environment variables of the runs."
    )
    slurm: SlurmOptions = Field(default=SlurmOptions(), description="Options for the backend Slurm.")
    pods: PodOptions = Field(default=PodOptions(), description="Options for the backend Pods.")
    telemetry: Telemetry = Field(default=Telemetry(), description="What is sampled while a job runs.")


def mutable(name: str) -> bool:
    """Whether a field of `spec` may be changed after creation."""
    extra: Any = Spec.model_fields[name].json_schema_extra
    return isinstance(extra, dict) and bool(extra.get("mutable"))
