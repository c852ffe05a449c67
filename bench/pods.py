"""Five hundred Speedruns of backend Pods that wait when the operator starts, beside a bare loop of the same requests.

    python bench/pods.py [--runs 500] [--whole 10]

Both on a test bed of its own: half of the bare ones, then the operator's, then the other half. The bare loop goes as
the same account over the same client with as many requests at once, and makes for each Speedrun the patch of the
finalizer, the patch of the status and the creation of the pod that the operator made. No node is up then, so that no
pod takes CPU time. A rate is pods a second from the first to the last, by when a watch shows them. Then the bed's node
is started and some replays run in real pods; what the operator wrote for them is counted, of the API server's metrics
and events. Ends with one line of JSON: `pods`, `doubles`, `rate_per_s`, `bare_rate_per_s`, `ratio`; `writes_per_run`,
from `kubectl apply` to the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import threading
import time
from typing import Any

from _bench import create, replay, speedruns

from speedrun_operator.kube.access import Access, Files
from speedrun_operator.kube.client import MERGE_PATCH, Kube, speedrun_path
from testbed.bed import Bed
from testbed.image import IMAGE
from testbed.kubernetes import ApiError, Kubernetes
from testbed.node import Node
from testbed.operator import Operator
from testbed.part import Place

AT_ONCE = 16  # as many resources as the operator works on at once
DEADLINE_SECONDS = 300.0
BARE = "bare"
POD = {"backend": "Pods", "pods": {"resources": {"requests": {"cpu": "10m", "memory": "16Mi"}}}}
SETTINGS = {
    "SPEEDRUN_PODS__ENABLED": "true",
    "SPEEDRUN_PODS__IMAGE": IMAGE,
    "SPEEDRUN_WATCH__NAMESPACES": "default",
}
OURS = re.compile(
    r'^apiserver_request_total\{code="2.*resource="(?P<resource>speedruns|pods|configmaps)".*subresource="(?P<sub>[a-z]*)".*'
    r'verb="(?P<verb>PATCH|POST|DELETE)".*\} (?P<count>[0-9.e+]+)$'
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=500, help="Speedruns (default: %(default)s)")
    parser.add_argument("--whole", type=int, default=10, help="replays in real pods (default: %(default)s)")
    arguments = parser.parse_args()
    count = arguments.runs
    place = Place(profile="bench", say=lambda line: print(f"bench: {line}", file=sys.stderr))
    with Bed(place).hold() as facts:
        api = Kubernetes(place)
        # The production period: what is measured is how pods are made, not how often they are looked at.
        operator = Operator(place, facts, {**SETTINGS, "SPEEDRUN_PODS__POLL_SECONDS": "5"})
        operator.install()
        example = _example(api, operator)
        names = [f"pods-{number}" for number in range(count)]
        create(api, (replay(name, POD, steps=1) for name in names))
        before = asyncio.run(_bare(operator, example, range(count // 2)))
        with _Watch(api, "default") as watch:
            operator.start()
            ours = watch.until(count)
        operator.stop()
        doubles = watch.total - count
        after = asyncio.run(_bare(operator, example, range(count // 2, count)))
        api.call("DELETE", "/apis/speedrun.dev/v1alpha1/namespaces/default/speedruns", timeout=60)
        # Else the node would have them to run, too.
        api.call("DELETE", f"/api/v1/namespaces/{BARE}/pods?gracePeriodSeconds=0", timeout=120)
        writes = _whole(api, operator, Node(place), facts, arguments.whole)
        operator.stop()
    rate, bare_rate = _rate(ours), (_rate(before) * len(before) + _rate(after) * len(after)) / count
    print(f"bench: bare {_rate(before):.1f}/s before, {_rate(after):.1f}/s after", file=sys.stderr)
    figures = {
        "bench": "pods",
        "pods": len(ours),
        "doubles": doubles,
        "rate_per_s": round(rate, 1),
        "bare_rate_per_s": round(bare_rate, 1),
        "ratio": round(rate / bare_rate, 2),
        "writes_per_run": round(writes, 1),
    }
    print(json.dumps(figures))
    return 0


def _example(api: Kubernetes, operator: Operator) -> tuple[dict[str, Any], dict[str, Any]]:
    """The pod and the status of a Speedrun that the operator has submitted."""
    create(api, [replay("example", POD, steps=1)])
    operator.start()
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (status := speedruns(api)[0].get("status", {})).get("job"):
        if time.monotonic() > deadline:
            raise TimeoutError("the example was not submitted")
        time.sleep(0.2)
    name = status["allocations"][0]["name"]
    pod = json.loads(api.call("GET", f"/api/v1/namespaces/default/pods/{name}"))
    api.call("DELETE", "/apis/speedrun.dev/v1alpha1/namespaces/default/speedruns/example")
    while speedruns(api) or json.loads(api.call("GET", "/api/v1/namespaces/default/pods"))["items"]:
        time.sleep(0.2)
    operator.stop()
    kept = {key: pod["metadata"][key] for key in ("labels", "annotations") if key in pod["metadata"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": kept, "spec": pod["spec"]}, status


async def _bare(operator: Operator, example: tuple[dict[str, Any], dict[str, Any]], numbers: range) -> list[float]:
    """When each pod was made, by the bare loop."""
    api = Kubernetes(operator.place)
    try:
        api.call("POST", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": BARE}})
    except ApiError as error:
        if error.status != 409:
            raise
    bodies = [replay(f"bare-{number}", POD, steps=1) for number in numbers]
    for body in bodies:
        body["metadata"]["namespace"] = BARE
    create(api, bodies, BARE)
    kube = Kube(Access(Files(str(operator.kubeconfig), None, explicit=True)))
    slots, times = asyncio.Semaphore(AT_ONCE), []
    pod, status = example

    async def one(number: int) -> None:
        name = f"bare-{number}"
        async with slots:
            finalizer = {"metadata": {"finalizers": ["speedrun.dev/bench"]}}
            await kube.request("PATCH", speedrun_path(BARE, name), body=finalizer, content_type=MERGE_PATCH)
            await kube.patch_speedrun(BARE, name, {"status": status}, subresource="status")
            body = {**pod, "metadata": {**pod["metadata"], "name": name, "namespace": BARE}}
            await kube.request("POST", f"/api/v1/namespaces/{BARE}/pods", body=body)
            times.append(time.monotonic())

    try:
        await asyncio.gather(*(one(number) for number in numbers))
    finally:
        await kube.close()
    return times


class _Watch:
    """When each pod of a namespace was first seen."""

    def __init__(self, api: Kubernetes, namespace: str) -> None:
        self._api = api
        self._path = f"/api/v1/namespaces/{namespace}/pods?watch=true"
        self._seen: dict[str, float] = {}
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """The thread ends with its stream."""

    def _run(self) -> None:
        with self._api.stream(self._path) as answer:
            for line in answer:
                event = json.loads(line)
                if event["type"] == "ADDED":
                    self._seen.setdefault(event["object"]["metadata"]["uid"], time.monotonic())

    @property
    def total(self) -> int:
        return len(self._seen)

    def until(self, count: int) -> list[float]:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while len(self._seen) < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"only {len(self._seen)} of {count} pods in {DEADLINE_SECONDS:g} s")
            time.sleep(0.1)
        return list(self._seen.values())


def _whole(api: Kubernetes, operator: Operator, node: Node, facts: Any, count: int) -> float:
    """How many writes of the operator a replay in a real pod takes, from its creation to its end."""
    operator.start()
    node.start(facts)
    deadline = time.monotonic() + DEADLINE_SECONDS
    while speedruns(api) or json.loads(api.call("GET", "/api/v1/namespaces/default/pods"))["items"]:
        if time.monotonic() > deadline:
            raise TimeoutError("what was deleted is still there")
        time.sleep(0.5)
    before = _written(api)
    create(api, (replay(f"whole-{number}", POD, steps=30, intervalMilliseconds=200) for number in range(count)))
    while not all(_settled(each) for each in speedruns(api)):
        if time.monotonic() > deadline:
            raise TimeoutError("the replays have not finished")
        time.sleep(0.5)
    events = json.loads(api.call("GET", "/api/v1/namespaces/default/events", timeout=30))["items"]
    ours = [each for each in events if each["involvedObject"].get("name", "").startswith("whole-")]
    told = sum(int(each.get("count") or 1) for each in ours)
    reasons = {each["reason"]: sum(one["reason"] == each["reason"] for one in ours) for each in ours}
    print(f"bench: events {reasons}, other writes {_written(api) - before}", file=sys.stderr)
    return (_written(api) - before + told) / count


def _settled(speedrun: dict[str, Any]) -> bool:
    metadata = speedrun["metadata"]
    return metadata.get("labels", {}).get("speedrun.dev/finished") == "true" and not metadata.get("finalizers")


def _written(api: Kubernetes) -> int:
    """Patches of Speedruns, creations of pods and of ConfigMaps that the API server has taken since its start."""
    total = 0.0
    for line in api.call("GET", "/metrics", timeout=30).decode().splitlines():
        found = OURS.match(line)
        if found is None:
            continue
        made = found["resource"] != "speedruns" and (found["verb"], found["sub"]) == ("POST", "")
        if made or (found["resource"] == "speedruns" and found["verb"] == "PATCH"):
            total += float(found["count"])
    return round(total)


def _rate(times: list[float]) -> float:
    return (len(times) - 1) / (max(times) - min(times))


if __name__ == "__main__":
    raise SystemExit(main())
