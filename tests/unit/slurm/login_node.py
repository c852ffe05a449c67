"""A login node in a directory: the real bash and tools, and Slurm's programs played back from what they were seen to
print. For the remote commands' text, where a real Slurm cannot be made to say everything that it may say.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from speedrun_operator.backends.slurm import commands
from speedrun_operator.backends.slurm.outcome import read_outcome
from speedrun_operator.lifecycle.observation import Outcome

TOOLS = (
    *("bash", "cat", "cp", "date", "dd", "find", "grep", "head", "ln", "mkdir"),
    *("mv", "rm", "rmdir", "sed", "sort", "stat", "tail", "xargs"),
)
NONCE = "0123456789abcdef"
PREFIX = "sr-c1c1c1c1-"
NAME = f"{PREFIX}0f0e0d0c-1111-2222-3333-444455556666-0"
PATH = "lab/mine-0f0e0d0c/alloc-0"
SINCE = datetime(2026, 7, 1, 12, tzinfo=UTC)
PROGRAM = """#!/bin/bash
printf '%s\\n' "$*" >>"{folder}/asked"
case " $* " in *' -h '* | *' -n '*) ;; *) printf '{heading}' ;; esac
cat "{folder}/stdout"
cat "{folder}/stderr" >&2
exit {code}
"""


HEADINGS = {"squeue": "JOBID|STATE|NAME\\n", "sacct": "JobIDRaw|State|JobName\\n"}


class LoginNode:
    """Has no other programs than TOOLS and those that were told what to say."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs = folder / "bin"
        self.home = folder / "home"
        self.programs.mkdir()
        self.home.mkdir()
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found, f"this machine has no {tool}"
            (self.programs / tool).symlink_to(found)
        self.says("squeue")

    def says(
        self, program: str, stdout: str | bytes = "", stderr: str = "", code: int = 0, *, heading: bool = True
    ) -> None:
        """What a program prints from now on, and its exit code; `heading`: where it works, above its rows."""
        folder = self.folder / program
        folder.mkdir(exist_ok=True)
        (folder / "stdout").write_bytes(stdout if isinstance(stdout, bytes) else stdout.encode())
        (folder / "stderr").write_text(stderr)
        path = self.programs / program
        above = HEADINGS.get(program, "") if heading and code == 0 else ""
        path.write_text(PROGRAM.format(folder=folder, code=code, heading=above))
        path.chmod(0o755)

    def asked(self, program: str) -> list[str]:
        """The arguments of each call of a program."""
        path = self.folder / program / "asked"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def ledger(self) -> Path:
        return self.home / "runs" / PATH

    def run(self, command: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        environment = {"PATH": str(self.programs), "HOME": str(self.home), "LC_ALL": "C", "TZ": "Asia/Tokyo"}
        bash = [str(self.programs / "bash"), "--noprofile", "--norc", "-p", "-c", command]
        return subprocess.run(bash, input=stdin, capture_output=True, env=environment, timeout=30, check=False)

    def submit(self, script: bytes = b"#!/bin/bash\n", arguments: Sequence[str] = ("--parsable",)) -> Outcome:
        item = commands.Submission(NAME, PATH, SINCE, arguments, script.decode())
        [outcome] = self.batch([item])
        assert outcome is not None
        return outcome

    def batch(self, items: Sequence[commands.Submission]) -> list[Outcome | None]:
        """The outcome of each; None for one that was not begun."""
        command, stdin = commands.submit(root="~/runs", nonce=NONCE, items=items)
        done = self.run(command, stdin)
        said = {
            section.words[1]: read_outcome(section.words[2:], section.body.decode().strip() or done.stderr.decode())
            for section in commands.sections(done.stdout, NONCE)
            if section.words[0] == "item"
        }
        return [said[str(number)] if str(number) in said else read_outcome((), "") for number in range(len(items))]

    def poll(self, *lines: str, log_bytes: int = 65536, poll_bytes: int = 1 << 22) -> list[commands.Section]:
        """The sections of a poll that asks about `lines`."""
        command = commands.poll(root="~/runs", prefix=PREFIX, nonce=NONCE, log_bytes=log_bytes, poll_bytes=poll_bytes)
        return commands.sections(self.run(command, "".join(lines).encode()).stdout, NONCE)

    def cancel(self, *lines: str) -> list[commands.Section]:
        command = commands.cancel(root="~/runs", prefix=PREFIX, nonce=NONCE)
        return commands.sections(self.run(command, "".join(lines).encode()).stdout, NONCE)
