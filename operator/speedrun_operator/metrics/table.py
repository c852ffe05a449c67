"""Every metric: its name, type, labels and meaning. docs/operations.md is held to this by a test.

Names end in their unit (seconds, bytes, ratio: of 1), counters in _total, times of day in _timestamp_seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Metric:
    """`help` is one sentence without a full stop."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    labels: tuple[str, ...]
    help: str


def _gauge(name: str, labels: tuple[str, ...], help_: str) -> Metric:
    return Metric(name, "gauge", labels, help_)


def _counter(name: str, labels: tuple[str, ...], help_: str) -> Metric:
    return Metric(name, "counter", labels, help_)


ONE = ("namespace", "name")

SPEEDRUNS = _gauge("speedrun_resources", ("namespace", "phase"), "Speedruns in each phase")
WITHOUT = _gauge("speedrun_resources_without_series", (), "Speedruns that have no series of their own, being too many")

INFO = _gauge("speedrun_info", (*ONE, "recipe", "backend"), "1; what the Speedrun runs, and where")
PHASE = _gauge(
    "speedrun_phase", (*ONE, "phase"), "1 for the phase that the Speedrun is in; the other phases are absent"
)
VAL_LOSS = _gauge("speedrun_val_loss", ONE, "Validation loss, cross-entropy in nats; finished: the mean of its results")
TARGET = _gauge("speedrun_target", ONE, "Value of the recipe's metric that is to be reached")
TRAIN_TIME = _gauge(
    "speedrun_train_time_seconds", ONE, "Timed training: record time; finished: the mean of its results"
)
PROGRESS = _gauge("speedrun_progress_ratio", ONE, "Part of the training steps of all runs that is done")
STEP_TIME = _gauge("speedrun_step_time_seconds", ONE, "Average time of a training step")
REMAINING = _gauge("speedrun_remaining_seconds", ONE, "Estimate of what is left of the run's training")
QUEUE = _gauge(
    "speedrun_queue_time_seconds", ONE, "Time in the queue, so far while it waits; else of the job that started last"
)
ENDED = _gauge("speedrun_completion_timestamp_seconds", ONE, "When the Speedrun finished")
CONDITION = _gauge(
    "speedrun_condition",
    (*ONE, "type"),
    "Admitted, BackendReachable and Stalled of what is not finished: 1 True, 0 False, absent Unknown",
)

BUILD = _gauge("speedrun_operator_build_info", ("version",), "1; the operator's version")
POLLS = _counter("speedrun_operator_polls_total", ("backend", "outcome"), "Polls: answered or unanswered")
SUBMISSIONS = _counter(
    "speedrun_operator_submissions_total",
    ("backend", "outcome"),
    "Allocations submitted: accepted, rejected (only another spec helps), busy (it may go through later), unknown (it "
    "is looked up)",
)
PREPARATIONS = _counter("speedrun_operator_preparations_total", (), "Cache entries asked for")
CANCELLATIONS = _counter("speedrun_operator_cancellations_total", (), "Requests to cancel jobs or pods")
COMMANDS = _counter(
    "speedrun_operator_remote_commands_total",
    ("login", "outcome"),
    "Commands on the login node: completed, not_run, or unknown",
)
LATENCY = Metric(
    "speedrun_operator_remote_command_duration_seconds",
    "histogram",
    ("login",),
    "Time from asking for a command on the login node to its whole answer, of those completed",
)
CONNECTED = _gauge("speedrun_operator_login_connected", ("login",), "1 while the connection to the login node stands")
CONNECTS = _counter("speedrun_operator_login_connects_total", ("login",), "Connections made to the login node")
CONNECT_FAILURES = _counter(
    "speedrun_operator_login_connect_failures_total", ("login",), "Connections to the login node that failed"
)
REQUESTS = _counter(
    "speedrun_operator_api_requests_total",
    ("api", "code"),
    "Requests to the APIs kubernetes (but for Kopf's watch) and platform, by the HTTP status of the answer; none: "
    "there was no answer",
)
TOKEN_END = _gauge(
    "speedrun_operator_token_expiry_timestamp_seconds",
    ("api",),
    "When the credential in use for the API kubernetes or platform runs out; absent where it does not say",
)
CRD_INSTALLED = _gauge("speedrun_operator_crd_installed", (), "1 where the CRD is served, 0 where it is missing")
CRD_STALE = _gauge("speedrun_operator_crd_stale", (), "1 where the served CRD is not this version's")
WATCH = _gauge("speedrun_operator_watch_running", (), "1 while Kopf watches Speedruns")
BEAT_AGE = _gauge(
    "speedrun_operator_loop_beat_age_seconds", (), "Since the last beat of the event loop, due each second"
)
LAG = Metric(
    "speedrun_operator_loop_lag_seconds", "histogram", (), "How much later than due the event loop's beats came"
)
STORAGE_USED = _gauge(
    "speedrun_operator_storage_used_ratio",
    (),
    "Part of the shared storage (or of the quota, whichever leaves less) that is used; from 0.85 on StorageLow is said",
)
STORAGE_SIZE = _gauge("speedrun_operator_storage_size_bytes", (), "Size of the shared storage")
STORAGE_FREE = _gauge("speedrun_operator_storage_free_bytes", (), "Free on the shared storage")

TABLE = [each for each in list(globals().values()) if isinstance(each, Metric)]
