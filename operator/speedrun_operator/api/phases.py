"""Phases and the vocabulary of conditions: type, reason. What users and `kubectl wait` see."""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """Where a Speedrun stands. Derived from conditions, allocations and runs; never read back as state."""

    PENDING = "Pending"
    PREPARING = "Preparing"
    QUEUED = "Queued"
    COMPILING = "Compiling"
    TRAINING = "Training"
    SUCCEEDED = "Succeeded"
    MISSED = "Missed"
    FAILED = "Failed"
    SUSPENDED = "Suspended"

    @property
    def finished(self) -> bool:
        return self in FINISHED


FINISHED = frozenset({Phase.SUCCEEDED, Phase.MISSED, Phase.FAILED})


class AllocationState(StrEnum):
    """One submitted unit. `Submitting`: the name is recorded, the outcome of the submission is not yet known."""

    SUBMITTING = "Submitting"
    QUEUED = "Queued"
    RUNNING = "Running"
    ENDED = "Ended"


class PreparationState(StrEnum):
    """A cache entry that runs need. `Waiting`: not asked for (yet, or again)."""

    WAITING = "Waiting"
    QUEUED = "Queued"
    RUNNING = "Running"
    READY = "Ready"
    FAILED = "Failed"


class ConditionType(StrEnum):
    ADMITTED = "Admitted"
    SUBMITTED = "Submitted"
    STARTED = "Started"
    BACKEND_REACHABLE = "BackendReachable"
    SUSPENDED = "Suspended"
    STALLED = "Stalled"
    STORAGE_LOW = "StorageLow"
    SUCCEEDED = "Succeeded"
    FINISHED = "Finished"


class Reason(StrEnum):
    """Reasons that the operator itself gives; the backend's and the login's words come beside them."""

    # Admitted
    ADMITTED = "Admitted"
    INVALID_SPEC = "InvalidSpec"
    UNKNOWN_RECIPE = "UnknownRecipe"
    INVALID_PARAMETER = "InvalidParameter"
    UNSUPPORTED_HARDWARE = "UnsupportedHardware"
    SUBMISSION_REJECTED = "SubmissionRejected"
    LOGIN_NOT_CONFIGURED = "LoginNotConfigured"
    NAMESPACE_NOT_LISTED = "NamespaceNotListed"
    CLUSTER_UNKNOWN = "ClusterUnknown"
    NODES_UNAVAILABLE = "NodesUnavailable"
    DRIVER_TOO_OLD = "DriverTooOld"
    NOT_ALLOWED = "NotAllowed"
    PODS_NOT_ENABLED = "PodsNotEnabled"
    CLUSTER_PROVISIONING = "ClusterProvisioning"
    CLUSTER_ENDED = "ClusterEnded"
    CLUSTER_NOT_SHOWN = "ClusterNotShown"
    SCHEDULER_NOT_SUNK = "SchedulerNotSunk"
    SLURM_NOT_READY = "SlurmNotReady"
    STORAGE_NOT_READY = "StorageNotReady"
    SSH_NOT_READY = "SshNotReady"
    UNSUPPORTED_SOURCE = "UnsupportedSource"
    UNKNOWN_REVISION = "UnknownRevision"
    SOURCE_NOT_FOUND = "SourceNotFound"
    SOURCE_REFUSED = "SourceRefused"
    SOURCE_UNREACHABLE = "SourceUnreachable"
    SOURCE_PATH_MISSING = "SourcePathMissing"
    GIT_MISSING = "GitMissing"
    PATCH_MISSING = "PatchMissing"
    PATCH_UNUSABLE = "PatchUnusable"
    PATCH_CHANGED = "PatchChanged"
    SECRET_MISSING = "SecretMissing"
    SECRET_KEY_MISSING = "SecretKeyMissing"
    SECRET_UNUSABLE = "SecretUnusable"
    SECRET_FORBIDDEN = "SecretForbidden"
    SECRET_UNREAD = "SecretUnread"
    # Submitted, Started
    NOT_SUBMITTED = "NotSubmitted"
    SUBMITTING = "Submitting"
    SUBMITTED = "Submitted"
    NOT_STARTED = "NotStarted"
    STARTED = "Started"
    # BackendReachable
    REACHABLE = "Reachable"
    NOT_ASKED = "NotAsked"
    LOGIN_CHANGED = "LoginChanged"
    # Succeeded, Finished
    IN_PROGRESS = "InProgress"
    TARGET_REACHED = "TargetReached"
    TARGET_MISSED = "TargetMissed"
    DIVERGED = "Diverged"
    # why an allocation or a run ended
    COMPLETED = "Completed"
    NO_RESULT = "NoResult"
    JOB_FAILED = "JobFailed"
    JOB_LOST = "JobLost"
    CANCELLED = "Cancelled"
    TIME_LIMIT = "TimeLimit"
    OUT_OF_MEMORY = "OutOfMemory"
    NODE_FAILURE = "NodeFailure"
    NODES_RESTARTED = "NodesRestarted"
    PREEMPTED = "Preempted"
    LAUNCH_FAILED = "LaunchFailed"
    EVICTED = "Evicted"
    NODE_LOST = "NodeLost"
    DRAINED = "Drained"
    POD_PREEMPTED = "PodPreempted"
    POD_REFUSED = "PodRefused"
    POD_DELETED = "PodDeleted"
    POD_GONE = "PodGone"
    CONTAINER_NOT_STARTED = "ContainerNotStarted"
    SHARED_MEMORY_FULL = "SharedMemoryFull"
    OOM_KILLED = "OOMKilled"
    IMAGE_MISSING_BUILD_STEPS = "ImageMissingBuildSteps"
    CACHE_MISSING = "CacheMissing"
    CACHE_BROKEN = "CacheBroken"
    STORAGE_FULL = "StorageFull"
    STORAGE_LOW = "StorageLow"
    STORAGE_SUFFICES = "StorageSuffices"
    PREPARE_FAILED = "PrepareFailed"
    PREPARING = "Preparing"
    PREPARED = "Prepared"
    SUSPENDED = "Suspended"
    RESUMED = "Resumed"
    STALLED = "Stalled"
    PROGRESSING = "Progressing"
    NOT_RUNNING = "NotRunning"
    LOG_UNREADABLE = "LogUnreadable"
    STOPPED = "Stopped"
    NEVER_RUNS = "NeverRuns"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    BACKOFF_LIMIT_EXCEEDED = "BackoffLimitExceeded"
