"""The training clock, as the speedrun's rules demand: it counts training steps and stands still otherwise."""

from time import perf_counter

import torch


class Clock:
    """Milliseconds. A GPU works behind the program's back, so starting and stopping wait for it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.passed = 0.0
        self._since: float | None = None

    def start(self) -> None:
        self._wait()
        self._since = perf_counter()

    def stop(self) -> float:
        """Everything that was started has been done, and the clock stands."""
        self._wait()
        self.passed = self.read()
        self._since = None
        return self.passed

    def read(self) -> float:
        """Without waiting: what a GPU has still to do is not counted yet."""
        return self.passed + (0.0 if self._since is None else 1000 * (perf_counter() - self._since))

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
