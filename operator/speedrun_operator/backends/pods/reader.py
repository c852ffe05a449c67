"""The log of a pod, container after container, over bounded requests. The one place that asks for logs."""

from __future__ import annotations

import logging

from speedrun_operator.backends.pods.fields import Pod
from speedrun_operator.backends.pods.keeping import Tail
from speedrun_operator.backends.pods.logs import Cursor, all_of, take
from speedrun_operator.backends.pods.observe import keeps_its_log, owes_its_last_line, started_containers
from speedrun_operator.backends.reading import Reading
from speedrun_operator.kube.client import ApiError
from speedrun_operator.kube.pods import Pods
from speedrun_operator.progress.allocation import AllocationProgress

WHOLE_BYTES = 16 * 1024 * 1024  # more than a log has at once: the kubelet's containerLogMaxSize is 10 MiB
logger = logging.getLogger(__name__)


class LogReader:
    """See the module. `whole`: read to the end of what ended. `behind`: there is more to be had at once.

    `error`: what came of the last request, where that was no log.
    """

    def __init__(self, pods: Pods, log_format: str) -> None:
        self._pods = pods
        self._reading = Reading(log_format)
        self._read: set[str] = set()  # containers whose log was read to its end
        self._current: str | None = None
        self._before = self._reading  # what the containers before the current one said
        self._again = False  # the current one's log was read once more, from its beginning
        self._cursor = Cursor()
        self._caught_up = False
        self.tail = Tail()  # of a log that goes with its pod
        self.behind = False
        self.whole = False
        self.error: ApiError | None = None

    @property
    def progress(self) -> AllocationProgress | None:
        """What the log says; None until all that was there at first has been read."""
        return self._reading.progress if self._caught_up else None

    @property
    def so_far(self) -> AllocationProgress:
        return self._reading.progress

    @property
    def begun(self) -> bool:
        return self._current is not None or bool(self._read)

    def close(self) -> None:
        """There is nothing more to read."""
        self._caught_up = self.whole = True
        self.behind = False
        self.error = None

    async def read(self, pod: Pod, most: int) -> bool:
        """Read about `most` bytes more; whether there were any. A log that cannot be read is tried again."""
        if self.whole:
            return False
        grew = False
        self.behind = False
        self.error = None
        for name, ended in started_containers(pod):
            if name in self._read:
                continue
            if name != self._current:
                self._current, self._cursor = name, Cursor()
                self._before, self._again = self._reading, False
            taken = await self._piece(pod, name, most)
            if taken is None:
                return grew
            grew = grew or taken > 0
            if self.behind:
                return grew
            if not ended:
                break
            if taken > 0:
                # The API server ends an answer that the kubelet broke off as if it were whole: the end is where an
                # ended container has nothing more.
                self.behind = True
                return grew
            if owes_its_last_line(pod, name) and not self._is_told and not await self._found_in_all(pod, name):
                return grew  # an empty answer can be a broken one, too; whoever asks gives up after a while
            self._read.add(name)
            self._current = None
        else:
            self.whole = _is_done(pod)
        self._caught_up = True
        return grew

    async def _piece(self, pod: Pod, name: str, most: int) -> int | None:
        """How many bytes came; None where the log could not be read."""
        asked = self._cursor.asks(most)
        piece = await self._asked(pod, name, self._cursor.second, asked)
        if piece is None:
            return None
        taken = take(self._cursor, piece, asked)
        self._cursor, self.behind = taken.cursor, taken.more
        self._reading = self._reading.after(taken.data)
        if not keeps_its_log(pod):
            self.tail.add(taken.data)
        return len(taken.data)

    async def _found_in_all(self, pod: Pod, name: str) -> bool:
        """Whether the last line is in the log as a whole, which is asked for once.

        Where the node's clock was set back, lines have times from which on everything was read.
        """
        if self._again or self._cursor.second is None:
            return False
        piece = await self._asked(pod, name, None, WHOLE_BYTES)
        if piece is None:
            return False
        self._again = True
        text = all_of(piece)
        reading = self._before.after(text)
        if reading.progress.exit_code is None:
            return False
        self._reading = reading
        if not keeps_its_log(pod):
            self.tail.add(text)
        return True

    async def _asked(self, pod: Pod, name: str, since: str | None, most: int) -> bytes | None:
        metadata = pod["metadata"]
        try:
            return await self._pods.log(metadata["namespace"], metadata["name"], name, since=since, most=most)
        except ApiError as error:
            logger.debug("%s: the log of container %s: %s", metadata["name"], name, error)
            self.error = error
            return None

    @property
    def _is_told(self) -> bool:
        """Whether the script's last line was read."""
        return self._reading.progress.exit_code is not None


def _is_done(pod: Pod) -> bool:
    """Whether no container of ours will start any more."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed") or any(
        "terminated" in (each.get("state") or {})
        for each in (pod.get("status") or {}).get("containerStatuses") or []
        if each.get("name") == "train"
    )
