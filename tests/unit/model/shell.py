"""The remote commands' effects on ledgers and through Slurm's programs, as `backends.slurm.remote` writes them in bash.

A command is read from its own text, and does its work in the same order. Between two effects it awaits `pause`, where
the connection may be cut. `test_model_shell` holds it to the real text in a real bash.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from speedrun_operator.backends.slurm import refusals
from speedrun_operator.backends.slurm.remote import SUBMITTED
from unit.model.disk import CANCELLED, Disk, Ledger
from unit.model.job import Job
from unit.model.slurm import ACCOUNTING_OFF, Slurm
from unit.model.virtual import epoch, seconds, stamp

CLAIM_SECONDS = 300
SLURM_DOWN = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n"
Pause = Callable[[], Awaitable[None]]


class Answered(Exception):
    """Nothing follows the answer: of the command, or of an item."""


class Output:
    """What a command has printed so far."""

    def __init__(self, nonce: str) -> None:
        self.stdout = b""
        self.stderr = b""
        self._nonce = nonce

    def say(self, *words: object) -> None:
        self.stdout += f"\n@{self._nonce} {' '.join(map(str, words))}\n".encode()

    def answer(self, *words: object) -> None:
        self.say(*words)
        raise Answered

    def item(self, number: int) -> ItemOutput:
        """Where the answer of one item of a batch goes."""
        return ItemOutput(self, number)

    def print(self, text: str | bytes) -> None:
        self.stdout += text if isinstance(text, bytes) else text.encode()


class ItemOutput:
    """The answer of one item of a batch."""

    def __init__(self, output: Output, number: int) -> None:
        self._output = output
        self._number = number

    def answer(self, *words: object, text: str = "") -> None:
        self._output.say("item", self._number, *words)
        self._output.print(f"{text}\n")
        raise Answered


@dataclass
class Item:
    """One submission of a batch, as the command has it."""

    script: str
    path: str
    name: str
    package: str
    arguments: list[str]


def items(command: str) -> list[Item]:
    """What a submission's command is to submit."""
    calls = command[command.index("\nscript=") :].removesuffix(f"{SUBMITTED}\n")
    found: list[Item] = []
    for word in shlex.split(calls):
        if word.startswith("script="):
            found.append(Item(word.removeprefix("script="), "", "", "", []))
        else:
            found[-1].arguments.append(word)
    for each in found:
        _, _, each.path, each.name, _, each.package, *each.arguments = each.arguments
    return found


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
                await self._submit(command, stdin, pause, output)
            elif "declare -A wanted=()" in command:
                await self._cancel(command, stdin, pause, output)
            elif "mapfile -t asked" in command:
                await self._poll(command, stdin, pause, output)
            elif "ask scancel" in command:
                await self._cancel_jobs(command, pause)
            elif "ask sinfo" in command:
                await self._facts(pause, output)
            elif "ask squeue -h --me -o '%i|%j|%k'" in command:
                await self._jobs(command, pause, output)
            else:
                raise NotImplementedError(command)
        except Answered:
            pass

    # --- submit ---------------------------------------------------------------------------------------------------

    async def _submit(self, command: str, stdin: bytes, pause: Pause, output: Output) -> None:
        batch = items(command)
        sizes = re.search(r"^packages=\((.*)\)$", command, re.MULTILINE)[1].split()  # type: ignore[index]
        whole = len(stdin) >= sum(map(int, sizes))
        await pause()
        for each in batch:
            self.disk[each.path].exists |= not self.disk.full
        rows = self.slurm.squeue()
        if rows is None:
            output.stderr += SLURM_DOWN.encode()
        await pause()
        stop = False
        for number, item in enumerate(batch):
            said = output.item(number)
            try:
                if stop:
                    said.answer("later")
                stop = await self._item(item, rows, whole or not item.package, pause, said, output)
            except Answered:
                pass
            await pause()
        for each in batch if stop else ():
            self._remove(self.disk[each.path])
        output.say("done")

    async def _item(
        self, item: Item, rows: list[Job] | None, whole: bool, pause: Pause, said: ItemOutput, output: Output
    ) -> bool:
        """Raises Answered; returns, after an answer, where no further item may be begun."""
        ledger = self.disk[item.path]
        if not ledger.exists:
            said.answer("storage")
        if ledger.jobid:
            said.answer("accepted", *ledger.jobid.split())
        if ledger.owner == CANCELLED:
            said.answer("cancelled")
        if ledger.owner:
            said.answer("accepted", ledger.owner)
        if rows is None:
            said.answer("unasked")
        self._adopt(ledger, [each for each in rows or () if each.name == item.name], said)
        if self.disk.full:
            said.answer("storage")
        claim = self._claim(ledger, item.name, said, output)
        await pause()
        if not whole or self.disk.full:
            self._withdraw(ledger, claim)
            said.answer("storage")
        ledger.script = item.script.encode()
        await pause()
        code, answer, error = await self.slurm.sbatch(item.arguments, item.path, ledger.script)
        await pause()
        if code == 0:
            at = epoch()
            if not self.disk.full:
                ledger.jobid = f"{answer.strip()} {at}"
            said.answer("accepted", answer.strip(), at)
        lists = (refusals.UNKNOWN, refusals.REJECTED, refusals.OVERLOADED, refusals.BUSY)
        kind = next((texts for texts in lists if any(text in error for text in texts)), None)
        words: tuple[object, ...] = ("unknown", code)
        if kind in lists[1:]:
            self._withdraw(ledger, claim)
            words = ("rejected",) if kind is refusals.REJECTED else ("busy",)
        try:
            said.answer(*words, text=error)
        except Answered:
            if kind not in (refusals.UNKNOWN, refusals.OVERLOADED):
                raise
        return True

    def _withdraw(self, ledger: Ledger, claim: int) -> None:
        ledger.script = None
        del ledger.claims[claim]
        self._remove(ledger)

    def _remove(self, ledger: Ledger) -> None:
        """`rmdir`."""
        ledger.exists = bool(ledger.claims or ledger.owner or ledger.jobid or ledger.script)

    def _adopt(self, ledger: Ledger, found: list[Job], said: ItemOutput) -> None:
        if found:
            if not self.disk.full:
                ledger.jobid = f"{found[0].id} {found[0].submitted}"
            said.answer("accepted", found[0].id, found[0].submitted)

    def _claim(self, ledger: Ledger, name: str, said: ItemOutput, output: Output) -> int:
        last = max(ledger.claims, default=0)
        if last:
            age = math.floor(seconds()) - math.floor(ledger.claims[last])
            if age < CLAIM_SECONDS:
                said.answer("claimed", age)
            rows = self.slurm.squeue()
            if rows is None:
                output.stderr += SLURM_DOWN.encode()
                said.answer("unasked")
            self._adopt(ledger, [each for each in rows or () if each.name == name], said)
            code, accounted, error = self.slurm.sacct([name])
            if code == 0:
                self._adopt(ledger, [job for job, _ in accounted], said)
            elif ACCOUNTING_OFF not in error:
                said.answer("unaccounted", text=error)
        ledger.claims[last + 1] = seconds()
        return last + 1

    # --- poll -----------------------------------------------------------------------------------------------------

    async def _poll(self, command: str, stdin: bytes, pause: Pause, output: Output) -> None:
        prefix = re.search(r"^  case \$job in (\S+)\*\)", command, re.MULTILINE)[1]  # type: ignore[index]
        most = int(re.search(r"\|\| count=(\d+)$", command, re.MULTILINE)[1])  # type: ignore[index]
        budget = int(field(command, "budget"))
        asked = [line.split("\t") for line in stdin.decode().splitlines()]
        await pause()
        output.say("now", epoch())
        rows = self.slurm.squeue()
        output.say("squeue", 0 if rows is not None else 1)
        if rows is None:
            output.stderr += SLURM_DOWN.encode()
        output.print("".join(squeue_line(each) for each in rows or () if each.name.startswith(prefix)))
        await pause()
        absent = []
        for name, path, _, _ in asked:
            ledger = self.disk[path]
            if ledger.owner:
                output.say("owner", name, ledger.owner)
            if ledger.exit:
                output.say("exit", name, ledger.exit)
            found = {str(each.id) for each in rows or () if each.name == name}
            if rows is not None and (ledger.owner not in found if ledger.owner.isdecimal() else not found):
                absent.append(name)
        sizes = {path: len(log) for _, path, _, _ in asked if (log := self.disk[path].log) is not None}
        await pause()
        if absent:
            code, accounted, error = self.slurm.sacct(absent)
            output.say("sacct", code)
            output.print(error + "\n" if error else "".join(sacct_line(job, word) for job, word in accounted))
            await pause()
        for name, path, offset, _ in asked:
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
            output.stderr += SLURM_DOWN.encode()
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
        prefix = re.search(r"^grep -F '\|(\S+)'", command, re.MULTILINE)[1]  # type: ignore[index]
        await pause()
        rows = self.slurm.squeue()
        output.say("squeue", 0 if rows is not None else 1)
        live = [each for each in rows or () if not each.over and each.name.startswith(prefix)]
        output.print("".join(f"{each.id}|{each.name}|{each.comment}\n" for each in live))
        output.say("done")

    async def _facts(self, pause: Pause, output: Output) -> None:
        await pause()
        answers = self.slurm.squeue() is not None
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
