"""What /metrics costs with many Speedruns: bytes and CPU of a scrape, and the memory that it needs.

    python bench/scrape.py [--runs 1000]

In this process, without a cluster: the page is made of that many live Speedruns, then of as many finished ones. Ends
with one line of JSON: `series` and `bytes` of the scrape with live ones, `cpu_milliseconds` (the median of ten),
`peak_mib` (memory while it is made, beyond what is held anyway), `finished_kib` (held for finished ones, which
nothing else holds) and `list_cpu_milliseconds` (what the finished ones cost a resync that finds them unchanged).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from speedrun_operator.api.phases import Phase
from speedrun_operator.api.resource import Resource
from speedrun_operator.api.status import rfc3339
from speedrun_operator.distribution import Distribution
from speedrun_operator.finished import Finished
from speedrun_operator.metrics.figures import Figures, Work
from speedrun_operator.metrics.page import metrics
from speedrun_operator.shown import Shown

BEGAN = datetime(2026, 7, 1, tzinfo=UTC)
CONDITIONS = {"Admitted": "True", "BackendReachable": "True", "Stalled": "False", "Started": "True"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000, help="Speedruns (default: %(default)s)")
    runs = parser.parse_args().runs
    live = [Resource.parse(raw(number, Phase.TRAINING)) for number in range(runs)]
    page = metrics(lambda: figures([Shown.of(each) for each in live]), runs)
    body = page({}).body
    times = [seconds(lambda: page({})) for _ in range(10)]
    tracemalloc.start()
    page({})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    ended = [raw(number, Phase.SUCCEEDED) for number in range(runs)]
    finished = Finished(runs)
    tracemalloc.start()
    listed(finished, ended)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    again = statistics.median(seconds(lambda: listed(finished, ended)) for _ in range(5))
    result = {
        "bench": "scrape",
        "runs": runs,
        "series": sum(not line.startswith(b"#") for line in body.splitlines()),
        "bytes": len(body),
        "cpu_milliseconds": round(1000 * statistics.median(times)),
        "peak_mib": round(peak / 2**20, 1),
        "finished_kib": round(held / 2**10),
        "list_cpu_milliseconds": round(1000 * again, 1),
    }
    print(json.dumps(result))
    return 0


def listed(finished: Finished, objects: list[dict[str, Any]]) -> None:
    finished.begin()
    for each in objects:
        finished.listed(each)
    finished.done()


def seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def figures(live: list[Shown]) -> Figures:
    return Figures("0", datetime.now(UTC), 0.0, Distribution((1.0,)).counted(), {}, {}, work=Work(live=live))


def raw(number: int, phase: Phase) -> dict[str, Any]:
    """A Speedrun as the API server shows it, with everything that the page takes from it."""
    moment = rfc3339(BEGAN + timedelta(seconds=number))
    status: dict[str, Any] = {
        "phase": phase.value,
        "val_loss": 3.2782 + number / 1e6,
        "train_time": "58.432s",
        "train_time_ms": 58432 + number,
        "step_avg": 97.51,
        "progressPercentage": number % 100,
        "estimatedRemainingSeconds": number,
        "plan": {"recipe": "modded-nanogpt", "target": 3.28},
        "clock": {"queueMilliseconds": 12345 + number},
        "conditions": [
            {"type": type_, "status": said, "reason": "X", "lastTransitionTime": moment}
            for type_, said in CONDITIONS.items()
        ],
        **({"completionTime": moment} if phase.finished else {}),
    }
    return {
        "metadata": {
            "namespace": "speedruns",
            "name": f"attempt-number-{number:04}",
            "uid": f"0f0e0d0c-1111-2222-3333-{number:012}",
            "resourceVersion": str(number),
            "creationTimestamp": moment,
        },
        "spec": {"recipe": {"name": "modded-nanogpt"}},
        "status": status,
    }


if __name__ == "__main__":
    sys.exit(main())
