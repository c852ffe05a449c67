"""The remote command that submits: item after item, each looked up, claimed, given to sbatch, and recorded."""

from __future__ import annotations

import math
import re
import shlex
from dataclasses import dataclass

from speedrun_operator.backends.slurm import refusals
from speedrun_operator.backends.slurm.remote import SUBMIT, SUBMITTED
from unit.model.disk import CANCELLED, Disk, Ledger
from unit.model.job import Job
from unit.model.output import Answered, ItemOutput, Output, Pause
from unit.model.slurm import ACCOUNTING_OFF, Slurm
from unit.model.virtual import epoch, seconds

CLAIM_SECONDS = 300


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
    shared = command[command.index("\nbodies=(") : command.index(f"\n{SUBMIT[:20]}")]
    bodies = shlex.split(shared.strip().removeprefix("bodies=(").removesuffix(")"))
    calls = command[command.index("\nscript=") :].removesuffix(f"{SUBMITTED}\n")
    found: list[Item] = []
    for word in shlex.split(calls):
        if word.startswith("script="):
            parts = re.fullmatch(r"script=(.*)\$\{bodies\[(\d+)]}", word, re.DOTALL)
            assert parts is not None, word
            found.append(Item(parts[1] + bodies[int(parts[2])], "", "", "", []))
        else:
            found[-1].arguments.append(word)
    for each in found:
        _, _, each.path, each.name, _, each.package, *each.arguments = each.arguments
    return found


@dataclass
class Submissions:
    """One such command."""

    disk: Disk
    slurm: Slurm
    pause: Pause
    output: Output

    async def run(self, command: str, stdin: bytes) -> None:
        batch = items(command)
        sizes = re.search(r"^packages=\((.*)\)$", command, re.MULTILINE)[1].split()  # type: ignore[index]
        whole = len(stdin) >= sum(map(int, sizes))
        await self.pause()
        for each in batch:
            self.disk[each.path].exists |= not self.disk.full
        rows = self.slurm.squeue()
        if rows is None:
            self.output.stderr += self.slurm.excuse.encode()
        await self.pause()
        stop = False
        for number, item in enumerate(batch):
            said = self.output.item(number)
            try:
                if stop:
                    said.answer("later")
                stop = await self._item(item, rows, whole or not item.package, said)
            except Answered:
                pass
            await self.pause()
        for each in batch if stop else ():
            self._remove(self.disk[each.path])
        self.output.say("done")

    async def _item(self, item: Item, rows: list[Job] | None, whole: bool, said: ItemOutput) -> bool:
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
        claim = self._claim(ledger, item.name, said)
        await self.pause()
        if not whole or self.disk.full:
            self._withdraw(ledger, claim)
            said.answer("storage")
        ledger.script = item.script.encode()
        await self.pause()
        code, answer, error = await self.slurm.sbatch(item.arguments, item.path, ledger.script)
        await self.pause()
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

    def _claim(self, ledger: Ledger, name: str, said: ItemOutput) -> int:
        last = max(ledger.claims, default=0)
        if last:
            age = math.floor(seconds()) - math.floor(ledger.claims[last])
            if age < CLAIM_SECONDS:
                said.answer("claimed", age)
            rows = self.slurm.squeue()
            if rows is None:
                self.output.stderr += self.slurm.excuse.encode()
                said.answer("unasked")
            self._adopt(ledger, [each for each in rows or () if each.name == name], said)
            code, accounted, error = self.slurm.sacct([name])
            if code == 0:
                self._adopt(ledger, [job for job, _ in accounted], said)
            elif ACCOUNTING_OFF not in error:
                said.answer("unaccounted", text=error)
        ledger.claims[last + 1] = seconds()
        return last + 1
