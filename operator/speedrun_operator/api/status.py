"""`status` of a Speedrun: what the operator reports.

`val_loss`, `train_time`, `train_time_ms`, `step`, `total_steps` and `step_avg` carry the names that the trainer's own
log line gives them; everything else follows the Kubernetes API conventions. Times are UTC with whole seconds.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, WithJsonSchema
from pydantic.alias_generators import to_camel

from speedrun_operator.api.phases import AllocationState, ConditionType, Phase, PreparationState


def rfc3339(moment: datetime) -> str:
    """A moment as the Kubernetes API writes it: UTC, whole seconds, `Z`."""
    return moment.astimezone(UTC).replace(microsecond=0).isoformat().replace("+00:00", "Z")


Moment = Annotated[
    datetime, PlainSerializer(rfc3339, return_type=str), WithJsonSchema({"type": "string", "format": "date-time"})
]


class StatusModel(BaseModel):
    """Read leniently (a newer operator may have written more), written exactly; immutable."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore")


class Condition(StatusModel):
    """A Kubernetes condition (metav1.Condition)."""

    type: ConditionType = Field(description="What it is about.")
    status: str = Field(pattern="^(True|False|Unknown)$", description="True, False or Unknown.")
    reason: str = Field(min_length=1, max_length=128, description="One word for why.")
    message: str = Field(default="", max_length=4096, description="The reason in words, and what to do.")
    observed_generation: int = Field(default=0, description="Generation of the spec that it was decided on.")
    last_transition_time: Moment = Field(description="When `status` changed last.")


class SourceSummary(StatusModel):
    """The code that every run of this Speedrun gets: resolved once, and never again for its life."""

    repository: str | None = Field(default=None, description="Where it was fetched from.")
    revision: str | None = Field(default=None, description="What was asked for.")
    commit: str | None = Field(default=None, description="The commit that it was at that time, 40 characters.")
    patch_hash: str | None = Field(default=None, description="SHA-256 of the patch.")
    path: str | None = Field(default=None, description="The checkout on the shared file system.")
    content: str | None = Field(default=None, description="What tells the state of that checkout from another.")
    dirty: bool | None = Field(default=None, description="Whether that checkout differs from its commit.")
    layout: str | None = Field(default=None, description="Which of the recipe's layouts the code has.")


class PlanSummary(StatusModel):
    """The resolved plan: what the recipe's knowledge and the spec came to."""

    recipe: str = Field(description="Name of the recipe.")
    commit: str | None = Field(default=None, description="Commit of the code that runs.")
    source: SourceSummary | None = Field(default=None, description="Where the code comes from.")
    metric: str = Field(default="val_loss", description="What the target is about.")
    target: float | None = Field(default=None, description="The metric's value to reach.")
    gpu_type: str | None = Field(default=None, description="Type of the GPUs that the jobs run on.")
    gpu_count: int = Field(default=0, description="GPUs of one allocation.")
    time_limit_seconds: int = Field(default=0, description="Time limit of one allocation, whole minutes.")
    partition: str | None = Field(default=None, description="The Slurm partition.")
    parameters: dict[str, str] = Field(default_factory=dict, description="The recipe's parameters, defaults included.")


class Clock(StatusModel):
    """Where the time went. Record time (train) and billed time (wall) never mix."""

    queue_milliseconds: int | None = Field(default=None, description="From submission to start.")
    image_milliseconds: int | None = Field(default=None, description="Building or checking the container.")
    data_milliseconds: int | None = Field(default=None, description="Code and data.")
    compile_milliseconds: int | None = Field(default=None, description="Compiling and warming up.")
    train_milliseconds: int | None = Field(default=None, description="The timed training loop: train_time.")
    wall_milliseconds: int | None = Field(default=None, description="From start to end of the allocations.")


class Allocation(StatusModel):
    """One submitted unit: a Slurm job. Its name identifies it; the scheduler's id may be given again."""

    id: int = Field(description="Number of the allocation, from 0.")
    name: str = Field(description="Name under which it was submitted.")
    state: AllocationState
    runs: tuple[int, ...] = Field(default=(), description="Indices of the runs that it was opened for.")
    job_id: str | None = Field(default=None, description="The scheduler's number for it.")
    node: str | None = Field(default=None, description="Where it runs or ran.")
    claimed: Moment = Field(description="When the operator wrote the name, before submitting.")
    submitted: Moment | None = Field(default=None, description="By the cluster's clock.")
    started: Moment | None = Field(default=None, description="By the cluster's clock.")
    ended: Moment | None = Field(default=None, description="By the cluster's clock.")
    reason: str | None = Field(default=None, description="Why it waits, or how it ended.")
    message: str | None = Field(default=None, description="The reason in words.")
    time_limit_seconds: int | None = Field(default=None, description="Its time limit, where it is not the plan's.")
    avoids: tuple[str, ...] | None = Field(default=None, description="Nodes that earlier allocations found broken.")
    ending: str | None = Field(default=None, description="Why the operator ends it; written before it is cancelled.")
    requeues: int | None = Field(default=None, description="How often its job was taken back to the queue.")
    login: str | None = Field(default=None, description="Login that submits it, where namespaces have their own.")


class StageSummary(StatusModel):
    """One stage of a run."""

    name: str = Field(description="code, image, data, downloads or train.")
    seconds: float | None = Field(default=None, description="How long it took, by the node's clock.")
    exit_code: int | None = Field(default=None, description="Of its command.")


class Hardware(StatusModel):
    """What a run ran on: times are comparable on the same only."""

    node: str | None = Field(default=None, description="Name of the node.")
    gpu: str | None = Field(default=None, description="Name of the GPUs.")
    count: int | None = Field(default=None, description="How many GPUs.")
    driver: str | None = Field(default=None, description="Version of the NVIDIA driver.")
    torch: str | None = Field(default=None, description="Version of PyTorch.")
    clock: int | None = Field(default=None, description="Mean clock of the GPUs while they worked, in MHz.")
    throttled: tuple[str, ...] | None = Field(
        default=None, description="What lowered the clocks: power, thermal, hardware."
    )


class Run(StatusModel):
    """One training run inside an allocation."""

    index: int = Field(description="Number of the run, from 0.")
    arm: str = Field(description="A, or B for the baseline.")
    allocation: int | None = Field(default=None, description="Number of the allocation that it runs or ran in.")
    phase: Phase
    val_loss: float | None = Field(default=None, alias="val_loss", description="Validation loss: cross-entropy, nats.")
    train_time: str | None = Field(default=None, alias="train_time", description="Timed training, such as 58.432s.")
    train_time_ms: int | None = Field(default=None, alias="train_time_ms", description="train_time in milliseconds.")
    reason: str | None = Field(default=None, description="Why the phase is what it is.")
    message: str | None = Field(default=None, description="The reason in words.")
    stages: tuple[StageSummary, ...] | None = Field(default=None, description="Its stages so far, in order.")
    hardware: Hardware | None = None
    counted: bool = Field(default=False, description="Whether it is one of the results.")


class Preparation(StatusModel):
    """One thing that the runs need ready: the container, the code, the data, what is downloaded besides."""

    stage: str = Field(description="code, image, data or downloads.")
    key: str = Field(description="Names the entry in the cache by its content.")
    state: PreparationState
    done: int | None = Field(default=None, description="How far, of `total`.")
    total: int | None = Field(default=None, description="What `done` comes to at the end.")
    unit: str | None = Field(default=None, description="What `done` and `total` count.")
    bytes: int | None = Field(default=None, description="Size of the entry.")
    attempt: int | None = Field(default=None, description="Number of the job that makes it, from 0.")
    job_id: str | None = Field(default=None, description="The scheduler's number of the job that makes it.")
    submitted: Moment | None = Field(default=None, description="When that job was submitted.")
    failures: int | None = Field(default=None, description="Attempts that failed while this Speedrun waited.")
    uncounted: dict[str, int] | None = Field(
        default=None, description="Of those, by reason, the ones that do not count against backoffLimit."
    )
    avoids: tuple[str, ...] | None = Field(default=None, description="Nodes that were broken under earlier attempts.")
    rebuilt: int | None = Field(default=None, description="How often it was found broken and made anew.")
    not_before: Moment | None = Field(default=None, description="It is not asked for again before this.")
    reason: str | None = Field(default=None, description="Why it waits or failed.")
    message: str | None = Field(default=None, description="The reason in words.")
    inputs: dict[str, str] | None = Field(default=None, description="What the code tells of itself: hashes.")
    login: str | None = Field(default=None, description="Login that it is prepared for, as of an allocation.")


class Status(StatusModel):
    """What `kubectl get` and `kubectl describe` show."""

    phase: Phase | None = None
    observed_generation: int | None = Field(
        default=None, description="Generation of the spec that this status is about."
    )
    val_loss: float | None = Field(default=None, alias="val_loss", description="Validation loss: cross-entropy, nats.")
    train_time: str | None = Field(default=None, alias="train_time", description="Timed training, such as 58.432s.")
    train_time_ms: int | None = Field(default=None, alias="train_time_ms", description="train_time in milliseconds.")
    step: int | None = Field(default=None, description="Training steps done.")
    total_steps: int | None = Field(default=None, alias="total_steps", description="Training steps of the whole run.")
    step_avg: float | None = Field(default=None, alias="step_avg", description="Average step time in milliseconds.")
    progress_percentage: int | None = Field(default=None, description="Of the training steps of all runs.")
    estimated_remaining_seconds: int | None = Field(default=None, description="Of training; absent when not known.")
    reason: str | None = Field(default=None, description="One word for why the phase is what it is.")
    result: str | None = Field(default=None, description="The metric that counts, with its value.")
    runs_summary: str | None = Field(default=None, description="Results so far and wanted, such as 1/1.")
    job: str | None = Field(default=None, description="The newest allocation's job number.")
    node: str | None = Field(default=None, description="The newest allocation's node.")
    log_path: str | None = Field(default=None, description="The newest allocation's log on the cluster.")
    start_time: Moment | None = Field(default=None, description="When the Speedrun was admitted first.")
    completion_time: Moment | None = Field(default=None, description="When it was finished.")
    suspended_seconds: int | None = Field(default=None, description="Suspended so far, the present time not counted.")
    next_attempt_time: Moment | None = Field(default=None, description="No allocation is opened before this.")
    plan: PlanSummary | None = None
    clock: Clock | None = None
    preparing: tuple[Preparation, ...] = Field(default=(), description="What the runs need ready first.")
    conditions: tuple[Condition, ...] = Field(
        default=(),
        description="Admitted, Submitted, Started, Finished and others, for `kubectl wait --for=condition=`.",
    )
    allocations: tuple[Allocation, ...] = Field(default=(), description="What was submitted: jobs or pods.")
    runs: tuple[Run, ...] = Field(default=(), description="The training runs.")

    def condition(self, type_: ConditionType) -> Condition | None:
        return next((each for each in self.conditions if each.type is type_), None)

    def dump(self) -> dict[str, Any]:
        """The JSON form that is written to /status: absent means absent, never null."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)
