"""A pod's containers as bash processes of this machine, one after the other as the kubelet would start them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from speedrun_operator.api.names import Identity
from speedrun_operator.backends.pods import places, script
from speedrun_operator.backends.pods.code import GIT_VARIABLE
from speedrun_operator.planning import RunPlan
from speedrun_operator.progress import ParserState, feed
from speedrun_operator.progress.allocation import AllocationProgress, add

IDENTITY = Identity("lab", "mine", "0f0e0d0c-1111-2222-3333-444455556666")
SECONDS = 60.0


class Containers:
    """`cache` is the volume; `bin` goes before the PATH; `log` is what the containers said, in their order."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.cache = place / "cache"
        self.bin = place / "bin"
        for each in (self.cache, self.bin, place / "home"):
            each.mkdir(parents=True)
        self.log = ""
        self.errors = ""  # what came by another way than the log's
        self.said = place / "said"

    def program(self, name: str, text: str) -> None:
        """A program that the image has."""
        path = self.bin / name
        path.write_text(text)
        path.chmod(0o755)

    def run(self, plan: RunPlan, allocation: int = 0, secret: str = "") -> int:
        """The exit code of the first container that fails, else of the last. `secret`: of the repository."""
        self.log = ""
        for part in script.parts(plan, IDENTITY, allocation):
            text = self._here(part.script.replace("HOME=/tmp", f"HOME={self.place}/home"))
            self.said.unlink(missing_ok=True)
            done = subprocess.run(
                ["bash", "-c", text],
                env={
                    "PATH": f"{self.bin}:{os.environ['PATH']}",
                    "SPEEDRUN_JOB": f"uid-{allocation}",
                    "SPEEDRUN_NODE": "node-a",
                    "SPEEDRUN_PYTHON": "python3",
                    **({GIT_VARIABLE: secret} if secret and part.name == "code" else {}),
                },
                cwd=self.place,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
            )
            self.log += done.stdout + done.stderr
            self.errors += done.stderr
            if done.returncode:
                return done.returncode
        return 0

    def ledger(self, allocation: int = 0) -> Path:
        return Path(self._here(script.ledger(IDENTITY, allocation)))

    def _here(self, text: str) -> str:
        words = {
            f"{places.PACKAGE}": f"{self.place}/package.tar.gz",
            places.PATCH: f"{self.place}/patch.diff",
            places.SAID: str(self.said),
            f"{places.CACHE}/": f"{self.cache}/",
            f"root={places.CACHE}\n": f"root={self.cache}\n",
        }
        for one, other in words.items():
            text = text.replace(one, other)
        return text

    def read(self) -> AllocationProgress:
        """What the operator makes of the log."""
        _, records = feed(ParserState("modded-nanogpt"), self.log.encode())
        progress = AllocationProgress()
        for record in records:
            progress = add(progress, record)
        return progress
