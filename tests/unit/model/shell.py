"""The remote commands' effects on ledgers and through Slurm's programs, as `backends.slurm.remote` writes them in bash.

A command is read from its own text, and does its work in the same order. Between two effects it awaits `pause`, where
the connection may be cut. `test_model_shell` holds it to the real text in a real bash.
"""

from __future__ import annotations

import re
import shlex

from unit.model.disk import CANCELLED, Disk
from unit.model.job import Job
from unit.model.output import Answered, Output, Pause
from unit.model.slurm import Slurm
from unit.model.submissions import Submissions
from unit.model.virtual import epoch, stamp


def field(command: str, name: str) -> str:
    found = re.search(rf"^{name}=(.*)$", command, re.MULTILINE)
    assert found, f"no {name} in the command"
    return shlex.split(found[1])[0]


class Shell:
    def __init__(self, disk: Disk, slurm: Slurm) -> None:
        self.disk = disk
        self.slurm = slurm

    async def run(self, command: str, stdin: bytes, pause: Pause, output: Output) -> None:
        """Run a command to its end; what it prints is in `output` as it is printed. Raises what `pause` does."""
        try:
            if "\npackages=(" in command:
                await Submissions(self.disk, self.slurm, pause, output).run(command, stdin)
            elif "declare -A wanted=()" in command:
                await self._cancel(command, stdin, pause, output)
            elif "mapfile -t asked" in command:
                await self._poll(command, stdin, pause, output)
            elif "ask scancel" in command:
                await self._cancel_jobs(command, pause)
            elif "sinfo -h" in command:
                await self._facts(pause, output)
            elif "squeue -h --me -o '%i|%j|%k'" in command:
                await self._jobs(command, pause, output)
            else:
                raise NotImplementedError(command)
        except Answered:
            pass

    # --- poll -----------------------------------------------------------------------------------------------------

    async def _poll(self, command: str, stdin: bytes, pause: Pause, output: Output) -> None:
        prefix = re.search(r"^  case \$job in (\S+)\* \|", command, re.MULTILINE)[1]  # type: ignore[index]
        most = int(re.search(r"\|\| count=(\d+)$", command, re.MULTILINE)[1])  # type: ignore[index]
        budget = int(field(command, "budget"))
        asked = [line.split("\t") for line in stdin.decode().splitlines()]
        await pause()
        output.say("now", epoch())
        rows = self.slurm.squeue()
        output.say("squeue", 0 if rows is not None else 1)
        if rows is None:
            output.print(self.slurm.excuse)
        output.print("".join(squeue_line(each) for each in rows or () if each.name.startswith(prefix)))
        await pause()
        absent = []
        for name, path, *_ in asked:
            ledger = self.disk[path]
            if ledger.owner:
                output.say("owner", name, ledger.owner)
            if ledger.exit:
                output.say("exit", name, ledger.exit)
            found = {str(each.id) for each in rows or () if each.name == name}
            if rows is not None and (ledger.owner not in found if ledger.owner.isdecimal() else not found):
                absent.append(name)
        sizes = {path: len(log) for _, path, *_ in asked if (log := self.disk[path].log) is not None}
        await pause()
        if absent:
            code, accounted, error = self.slurm.sacct(absent)
            output.say("sacct", code)
            output.print(error + "\n" if error else "".join(sacct_line(job, word) for job, word in accounted))
            await pause()
        for name, path, offset, *_ in asked:
            if path not in sizes:
                continue
            if sizes[path] < int(offset):
                output.say("log", name, sizes[path], 0, "shrunk")
                continue
            count = min(sizes[path] - int(offset), most, budget)
            budget -= count
            output.say("log", name, sizes[path], offset)
            output.print((self.disk[path].log or b"")[int(offset) : int(offset) + count])
        output.say("done")

    # --- cancel, jobs ---------------------------------------------------------------------------------------------

    async def _cancel(self, command: str, stdin: bytes, pause: Pause, output: Output) -> None:
        prefix = re.search(r"^  case \$job in (\S+)\*\)", command, re.MULTILINE)[1]  # type: ignore[index]
        wanted = set()
        for line in stdin.decode().splitlines():
            name, path = line.split("\t")
            wanted.add(name)
            await pause()
            ledger = self.disk[path]
            if not ledger.owner and not self.disk.full:
                ledger.exists = True
                ledger.own(CANCELLED)
            if not ledger.owner:
                output.say("open", name)
        rows = self.slurm.squeue()
        if rows is None:
            output.stderr += self.slurm.excuse.encode()
            output.answer("squeue", 1)
        await pause()
        ids = [each.id for each in rows or () if each.name.startswith(prefix) and each.name in wanted]
        self.slurm.scancel(ids)
        await pause()
        rows = self.slurm.squeue()
        output.say("squeue", 0 if rows is not None else 1)
        output.print("".join(squeue_line(each) for each in rows or () if each.name.startswith(prefix)))
        output.say("done")

    async def _cancel_jobs(self, command: str, pause: Pause) -> None:
        for name, number in re.findall(r"^ask scancel --name=(\S+) (\d+)$", command, re.MULTILINE):
            await pause()
            self.slurm.scancel([int(number)], name)

    async def _jobs(self, command: str, pause: Pause, output: Output) -> None:
        prefix = re.search(r"^grep -F -e '\|(\S+)'", command, re.MULTILINE)[1]  # type: ignore[index]
        await pause()
        rows = self.slurm.squeue()
        output.say("squeue", 0 if rows is not None else 1)
        live = [each for each in rows or () if not each.over and each.name.startswith(prefix)]
        output.print("".join(f"{each.id}|{each.name}|{each.comment}\n" for each in live))
        output.say("done")

    async def _facts(self, pause: Pause, output: Output) -> None:
        await pause()
        answers = self.slurm.up
        output.say("sinfo", 0 if answers else 1)
        output.print("all*|up|infinite|2|idle|(null)|(null)\n" if answers else "")
        output.say("started")
        output.say("nodes")
        output.say("done")


def squeue_line(job: Job) -> str:
    end = stamp(job.ended) if job.ended is not None else "N/A"
    return f"{job.id}|{job.word}|{job.submitted}|{job.started or 'N/A'}|{end}|{job.node}|{job.name}|{job.reason}\n"


def sacct_line(job: Job, word: str) -> str:
    ended = word not in ("PENDING", "RUNNING") and job.ended is not None
    end = stamp(job.ended or 0) if ended else "Unknown"
    return (
        f"{job.id}|{word}|{job.submitted}|{job.started or 'Unknown'}|{end}|{job.node or 'None assigned'}|{job.name}\n"
    )
