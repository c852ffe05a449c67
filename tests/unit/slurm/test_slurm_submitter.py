"""The gathering of submissions: what goes into one remote command, and what an answer that was cut leaves open."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import pytest

from speedrun_operator.backends.slurm import pace
from speedrun_operator.backends.slurm.commands import Submission
from speedrun_operator.backends.slurm.pace import Pace
from speedrun_operator.backends.slurm.submitter import AT_ONCE, BATCH, Submitter
from speedrun_operator.lifecycle.observation import Accepted, Busy, Outcome, Unknown
from speedrun_operator.login import Completed, NotRun, OutcomeUnknown, Reason
from unit.slurm.login_node import SINCE

Answer = Callable[[str, int], Completed]


class Remote:
    """A login whose commands wait until they are answered."""

    def __init__(self) -> None:
        self.commands: list[tuple[str, int, asyncio.Future[Completed]]] = []

    async def run(self, script: str, *, stdin: bytes, timeout: float) -> Completed:  # noqa: ASYNC109
        nonce = re.search(r"^nonce=(\w+)$", script, re.MULTILINE)
        assert nonce
        answer: asyncio.Future[Completed] = asyncio.get_running_loop().create_future()
        self.commands.append((nonce[1], len(re.findall(r"^item \d+ ", script, re.MULTILINE)), answer))
        return await answer

    def answer(self, number: int, make: Answer) -> None:
        nonce, items, answer = self.commands[number]
        try:
            answer.set_result(make(nonce, items))
        except Exception as error:
            answer.set_exception(error)


def accepts(nonce: str, items: int) -> Completed:
    return Completed(said(nonce, *(f"item {n} accepted {n + 1} 1782900000" for n in range(items)), "done"), b"", 0)


def said(nonce: str, *lines: str) -> bytes:
    return "".join(f"\n@{nonce} {line}\nits text\n" for line in lines).encode()


@pytest.fixture
def remote() -> Remote:
    return Remote()


@pytest.fixture
def submitter(remote: Remote) -> Submitter:
    return Submitter(remote, "~/runs", Pace())  # type: ignore[arg-type]


def item(number: int) -> Submission:
    return Submission(f"sr-c-{number}", f"lab/{number}/alloc-0", SINCE, ["--parsable"], "#!/bin/bash\n")


async def started(submitter: Submitter, *numbers: int) -> list[asyncio.Task[Outcome]]:
    tasks = [asyncio.create_task(submitter.submit(item(number))) for number in numbers]
    await passes()
    return tasks


async def passes() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_lone_submission_goes_at_once(remote: Remote, submitter: Submitter) -> None:
    [task] = await started(submitter, 0)
    assert [items for _, items, _ in remote.commands] == [1]
    remote.answer(0, accepts)
    assert isinstance(await task, Accepted)


async def test_what_comes_meanwhile_goes_together(remote: Remote, submitter: Submitter) -> None:
    tasks = await started(submitter, *range(AT_ONCE + BATCH + 10))
    assert [items for _, items, _ in remote.commands] == [1] * AT_ONCE, "no more than these are under way"
    remote.answer(0, accepts)
    await passes()
    assert [items for _, items, _ in remote.commands] == [1] * AT_ONCE + [BATCH]
    remote.answer(1, accepts)
    await passes()
    assert [items for _, items, _ in remote.commands][-1] == 10
    for number in range(AT_ONCE, len(remote.commands)):
        remote.answer(number, accepts)
    assert all(isinstance(each, Accepted) for each in await asyncio.gather(*tasks))


async def batch(remote: Remote, submitter: Submitter, size: int) -> list[asyncio.Task[Outcome]]:
    """`size` submissions in the command of that number AT_ONCE."""
    first = await started(submitter, *range(1000, 1000 + AT_ONCE))
    tasks = await started(submitter, *range(size))
    remote.answer(0, accepts)
    await passes()
    for each in first[1:]:
        each.cancel()
    assert remote.commands[AT_ONCE][1] == size
    return tasks


@pytest.mark.parametrize("answered", range(5))
async def test_a_cut_leaves_exactly_the_unanswered_open(remote: Remote, submitter: Submitter, answered: int) -> None:
    tasks = await batch(remote, submitter, 4)

    def cut(nonce: str, items: int) -> Completed:
        lines = [f"item {n} accepted {n + 1} 1782900000" for n in range(answered)]
        half = f"\n@{nonce} item {answered} accepted 99".encode()  # its line has no end
        raise OutcomeUnknown(Reason.CONNECTION_LOST, "cut", stdout=said(nonce, *lines) + half)

    remote.answer(AT_ONCE, cut)
    outcomes = await asyncio.gather(*tasks)
    assert [each.job_id for each in outcomes[:answered] if isinstance(each, Accepted)] == [
        str(n + 1) for n in range(answered)
    ]
    for outcome in outcomes[answered:]:
        assert isinstance(outcome, Unknown) and (outcome.reason, outcome.reachable) == ("ConnectionLost", False)


async def test_an_answer_with_another_nonce_is_none(remote: Remote, submitter: Submitter) -> None:
    tasks = await batch(remote, submitter, 2)
    remote.answer(AT_ONCE, lambda nonce, items: accepts("f" * 16, items))
    for outcome in await asyncio.gather(*tasks):
        assert isinstance(outcome, Unknown) and outcome.reason == "AnswerIncomplete"


async def test_a_command_that_did_not_run_submitted_nothing(remote: Remote, submitter: Submitter) -> None:
    tasks = await batch(remote, submitter, 3)

    def refused(nonce: str, items: int) -> Completed:
        raise NotRun(Reason.LOGIN_BUSY, "no session")

    remote.answer(AT_ONCE, refused)
    for outcome in await asyncio.gather(*tasks):
        assert isinstance(outcome, Busy) and (outcome.reason, outcome.reachable) == ("LoginBusy", False)


async def test_what_a_slow_command_did_not_begin_is_sent_again(remote: Remote, submitter: Submitter) -> None:
    tasks = await batch(remote, submitter, 3)
    lines = ("item 0 accepted 1 1782900000", "item 1 later", "item 2 later", "done")
    remote.answer(AT_ONCE, lambda nonce, items: Completed(said(nonce, *lines), b"", 0))
    await passes()
    assert tasks[0].done() and not tasks[1].done()
    assert remote.commands[AT_ONCE + 1][1] == 2
    remote.answer(AT_ONCE + 1, accepts)
    assert all(isinstance(each, Accepted) for each in await asyncio.gather(*tasks))


async def test_after_a_limit_nothing_is_sent_for_a_while(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    submitter = Submitter(remote, "~/runs", Pace(monotonic=lambda: now))  # type: ignore[arg-type]
    tasks = await batch(remote, submitter, 3)
    [late] = await started(submitter, 50)

    def limited(nonce: str, items: int) -> Completed:
        lines = ["item 0 accepted 1 1782900000", "item 1 busy", "item 2 later", "done"]
        text = said(nonce, *lines).replace(b"its text", b"sbatch: error: Rate limit exceeded")
        return Completed(text, b"", 0)

    remote.answer(AT_ONCE, limited)
    first, second, third, waited = await asyncio.gather(*tasks, late)
    assert isinstance(first, Accepted)
    assert isinstance(second, Busy) and "Rate limit exceeded" in second.message
    assert isinstance(third, Busy) and isinstance(waited, Busy), "neither was sent"
    sent = len(remote.commands)
    assert isinstance(await submitter.submit(item(60)), Busy)
    assert len(remote.commands) == sent
    now += pace.FIRST
    [task] = await started(submitter, 60)
    remote.answer(sent, accepts)
    assert isinstance(await task, Accepted)


async def test_one_name_asked_twice_is_submitted_once(remote: Remote, submitter: Submitter) -> None:
    tasks = await started(submitter, 0, 0)
    assert [items for _, items, _ in remote.commands] == [1]
    remote.answer(0, accepts)
    first, second = await asyncio.gather(*tasks)
    assert first == second and isinstance(first, Accepted)


def test_the_wait_doubles_until_a_good_answer() -> None:
    now = 0.0
    limits = Pace(monotonic=lambda: now)
    for failures in range(8):
        assert limits.heard("slurm_load_jobs error: Socket timed out on send/recv operation")
        assert limits.heard("Rate limit exceeded"), "what was under way before counts once"
        longest = min(pace.LONGEST, pace.FIRST * 2**failures)
        assert longest / 2 <= limits.rest() <= longest, f"after {failures + 1} answers"
        now += longest
    limits.answered()
    limits.heard("Rate limit exceeded")
    assert pace.FIRST / 2 <= limits.rest() <= pace.FIRST


@pytest.mark.parametrize("text", ["", "Invalid partition name specified", "Unable to contact slurm controller"])
def test_other_errors_ask_for_no_rest(text: str) -> None:
    limits = Pace()
    assert not limits.heard(text) and limits.rest() == 0
