"""A pod's log over answers that break off: nothing of it is lost, and its end is where nothing more comes."""

from __future__ import annotations

from typing import Any, cast

import pytest

from speedrun_operator.backends.pods.reader import LogReader
from speedrun_operator.kube.pods import Pods

LINES = [b"2026-07-01T12:00:00.1Z SPEEDRUN run=0 begin time=1\n"]
LINES += [
    b"2026-07-01T12:00:%02d.5Z step:%d/3 val_loss:3.%d train_time:%dms step_avg:1.00ms\n" % (step, step, 9 - step, step)
    for step in (1, 2, 3)
]
LOG = b"".join(LINES)


class Broken:
    """The API server, where each answer breaks off after another number of bytes; the last number stays."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = list(sizes)

    async def log(self, namespace: str, name: str, container: str, *, since: str | None, most: int) -> bytes:
        size = self.sizes.pop(0) if len(self.sizes) > 1 else self.sizes[0]
        lines = [line for line in LINES if since is None or line[:19] >= since[:19].encode()]
        return b"".join(lines)[: min(size, most)]


def pod(state: str) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "lab", "name": "sr-0"},
        "spec": {"containers": [{"name": "train"}]},
        "status": {"phase": "Running", "containerStatuses": [{"name": "train", "state": {state: {}}}]},
    }


@pytest.mark.parametrize("sizes", [(10_000,), (60, 160, 10_000), (0, 160, 230, 10_000)])
async def test_an_answer_that_broke_off_is_not_taken_for_the_end(sizes: tuple[int, ...]) -> None:
    reader = LogReader(cast(Pods, Broken(*sizes)), "modded-nanogpt")
    ended, reads = pod("terminated"), 0
    await reader.read(pod("running"), 65536)
    while not reader.whole:
        reads += 1
        assert reads < 6
        await reader.read(ended, 65536)
    run = reader.so_far.run(0)
    assert run is not None and run.progress.final is not None and run.progress.final.step == 3


async def test_of_what_ended_nothing_is_said_before_its_end_is_certain() -> None:
    reader = LogReader(cast(Pods, Broken(130, 10_000)), "modded-nanogpt")
    assert await reader.read(pod("terminated"), 65536)
    assert (reader.whole, reader.behind, reader.progress) == (False, True, None)


END = b"2026-07-01T12:00:09Z SPEEDRUN job end exit=0 time=9\n"


class Silent(Broken):
    """The API server whose first answers are whole and empty, as when the kubelet's connection fails."""

    async def log(self, namespace: str, name: str, container: str, *, since: str | None, most: int) -> bytes:
        if self.sizes:
            return b""[: self.sizes.pop()]
        return LOG + END


def ended(**terminated: Any) -> dict[str, Any]:
    made = pod("terminated")
    made["status"]["containerStatuses"][0]["state"]["terminated"] = terminated
    return made


async def test_an_empty_log_of_a_script_that_ended_by_itself_is_asked_for_again() -> None:
    reader = LogReader(cast(Pods, Silent(0, 0)), "modded-nanogpt")
    for _ in range(2):
        assert not await reader.read(ended(exitCode=0, reason="Completed"), 65536)
        assert (reader.whole, reader.behind, reader.progress) == (False, False, None)
    await reader.read(ended(exitCode=0), 65536)
    await reader.read(ended(exitCode=0), 65536)
    run = reader.so_far.run(0)
    assert reader.whole and run is not None and run.progress.final is not None


@pytest.mark.parametrize(
    "terminated",
    [{"exitCode": 137}, {"exitCode": 1, "reason": "OOMKilled"}, {"exitCode": 128, "reason": "StartError"}, {}],
)
async def test_what_was_killed_or_never_began_owes_no_last_line(terminated: dict[str, Any]) -> None:
    reader = LogReader(cast(Pods, Silent(0)), "modded-nanogpt")
    await reader.read(ended(**terminated), 65536)
    assert reader.whole
