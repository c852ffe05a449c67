"""The person's token from each place that renews it, and what is said where there is none."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import stat
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from speedrun_operator.check_platform import token_finding
from speedrun_operator.credentials import oidc
from speedrun_operator.credentials.faults import AccessError
from speedrun_operator.platform.tokens import (
    FromCommand,
    FromFile,
    FromRefreshToken,
    FromVariable,
    Source,
    Token,
    Tokens,
    token,
)
from testbed.platform import Person, Platform
from unit.outside.conftest import Connect


def jwt(**claims: object) -> str:
    parts = ({"alg": "none"}, claims)
    return ".".join(base64.urlsafe_b64encode(json.dumps(each).encode()).decode().rstrip("=") for each in parts) + ".x"


async def fault(source: Source) -> AccessError:
    with pytest.raises(AccessError) as raised:
        await source.read()
    return raised.value


def refreshing(platform: Platform, path: Path) -> FromRefreshToken:
    tls = ssl.create_default_context(cafile=str(platform.ca_file))
    return FromRefreshToken(platform.issuer, "speedrun", path, tls=tls)


async def test_a_file_with_or_without_the_word_bearer(tmp_path: Path) -> None:
    path = tmp_path / "token"
    for text in ("abc", "abc\n", "Bearer abc\n"):
        path.write_text(text)
        assert (await FromFile(path).read()).value == "abc"


@pytest.mark.parametrize("text", ["", "\n", "two words", '{"access_token": "a b"}', "tökén", "a\nb"])
async def test_a_file_without_a_token_is_told_and_never_shown(text: str, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(text)
    error = await fault(FromFile(path))
    assert f"the file {path} holds no token" in str(error)
    assert not text.strip() or text.strip() not in str(error)


async def test_a_file_that_is_missing(tmp_path: Path) -> None:
    assert "cannot read the token in /nowhere: No such file or directory" in str(
        await fault(FromFile(Path("/nowhere")))
    )


async def test_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANDROMEDA_TOKEN", "abc")
    assert (await FromVariable("ANDROMEDA_TOKEN").read()).value == "abc"
    monkeypatch.delenv("ANDROMEDA_TOKEN")
    assert "set ANDROMEDA_TOKEN, platform.token_file, " in str(await fault(FromVariable("ANDROMEDA_TOKEN")))


@pytest.mark.parametrize(
    "printed",
    [
        "abc",
        json.dumps(
            {"kind": "ExecCredential", "status": {"token": "abc", "expirationTimestamp": "2040-01-01T00:00:00Z"}}
        ),
    ],
    ids=["bare", "ExecCredential"],
)
async def test_a_command_that_prints_a_token(printed: str) -> None:
    assert (await FromCommand(("echo", printed)).read()).value == "abc"


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("sh", "-c", "echo signed out >&2; exit 3"), "the command 'sh' failed with exit code 3: signed out"),
        (("true",), "printed an empty token"),
        (("echo", "not", "one"), "its output is not an ExecCredential"),
        (("no-such-command",), "the command 'no-such-command' is not found in PATH"),
    ],
    ids=["fails", "empty", "words", "missing"],
)
async def test_a_command_that_gives_none(argv: tuple[str, ...], says: str) -> None:
    error = await fault(FromCommand(argv))
    assert str(error).startswith("platform.token_command: ")
    assert says in str(error)


async def test_a_refresh_token_is_spent_and_the_next_one_kept_private(
    platform: Platform, tmp_path: Path, connect: Connect
) -> None:
    path = tmp_path / "refresh"
    path.write_text(first := platform.refresh_token())
    api = connect(source=refreshing(platform, path))
    assert len(await api.clusters()) == 1
    assert (second := path.read_text().strip()) not in ("", first)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert second in platform.refresh_tokens, "the kept one is the one that the issuer takes next"


async def test_it_is_renewed_ahead_of_its_end_and_not_at_every_request(
    platform: Platform, tmp_path: Path, connect: Connect
) -> None:
    path = tmp_path / "refresh"
    path.write_text(platform.refresh_token())
    platform.access_seconds = 5
    api = connect(source=refreshing(platform, path))
    for _ in range(5):
        await api.clusters()
    assert len(platform.asked("/issuer/token")) == 1
    deadline = time.monotonic() + 20
    while len(platform.asked("/issuer/token")) < 2:
        assert time.monotonic() < deadline
        await api.clusters()
    assert {each.status for each in platform.asked("/clusters")} == {200}, "nobody saw an expired token"


async def test_a_spent_refresh_token_asks_for_a_new_sign_in(platform: Platform, tmp_path: Path) -> None:
    path = tmp_path / "refresh"
    path.write_text("spent")
    error = await fault(refreshing(platform, path))
    assert "refuses the refresh token: invalid_grant; it was used, revoked or has expired: sign in again" in str(error)
    assert not error.passing
    assert "spent" not in str(error).replace("spent by", "")


async def test_a_new_refresh_token_that_cannot_be_kept_is_used_all_the_same(
    platform: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "refresh"
    path.write_text(platform.refresh_token())
    source = refreshing(platform, path)

    def full(path: Path, text: str) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("speedrun_operator.platform.tokens.write_private", full)
    await source.read()
    assert "it cannot be written there (Read-only file system)" in caplog.text
    await source.read()
    assert all(each not in caplog.text for each in platform.refresh_tokens)


async def test_an_issuer_that_does_not_answer_may_heal(platform: Platform, tmp_path: Path) -> None:
    path = tmp_path / "refresh"
    path.write_text("any")
    platform.fail(503, 60)
    assert (await fault(refreshing(platform, path))).passing


async def test_a_token_that_renews_itself_is_never_overdue(platform: Platform, tmp_path: Path) -> None:
    path = tmp_path / "refresh"
    path.write_text(platform.refresh_token())
    held = Tokens(refreshing(platform, path), timedelta(minutes=10))
    first = await held.current()
    assert first.end is not None and first.fresh is not None
    assert first.end - first.fresh == pytest.approx(timedelta(minutes=10), abs=timedelta(seconds=5))
    object.__setattr__(first, "fresh", datetime.now(UTC))
    held._due = datetime.now(UTC)
    assert (await held.current()).value != first.value
    assert not held.overdue


async def test_a_token_that_nobody_renews_is_overdue_when_it_is_due_and_not_before(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(jwt(exp=time.time() + 3600))
    held = Tokens(FromFile(path))
    first = await held.current()
    assert first.fresh is not None and first.fresh - datetime.now(UTC) <= timedelta(minutes=5), "the file is read again"
    for due, overdue in ((timedelta(seconds=60), False), (timedelta(0), True)):
        held._held, held._due = replace(first, fresh=datetime.now(UTC)), datetime.now(UTC) + due
        assert (await held.current()).value == first.value
        assert held.overdue is overdue
    path.write_text(jwt(exp=time.time() + 7200))
    held._held = replace(first, fresh=datetime.now(UTC))
    assert (await held.current()).value != first.value
    assert not held.overdue


async def test_a_renewal_is_finished_though_nobody_waits_for_it(
    platform: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call with a deadline, or the end of the process, comes while the issuer answers."""
    path = tmp_path / "refresh"
    path.write_text(first := platform.refresh_token())
    spent, go_on = asyncio.Event(), asyncio.Event()
    refresh = oidc.refresh

    async def slow(*given: Any) -> oidc.Tokens:
        found = await refresh(*given)
        spent.set()
        await go_on.wait()
        return found

    monkeypatch.setattr(oidc, "refresh", slow)
    held = Tokens(refreshing(platform, path))
    asked = asyncio.create_task(held.current())
    await spent.wait()
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    again = asyncio.create_task(held.current())
    go_on.set()
    await held.close()
    kept = path.read_text().strip()
    assert kept != first and kept in platform.refresh_tokens
    assert (await again).value
    assert len(platform.asked("/issuer/token")) == 1, "the same renewal, and not the spent token again"


async def test_what_cannot_be_renewed_is_used_to_its_end(platform: Platform, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(jwt(exp=time.time() + 1000))
    held = Tokens(FromFile(path))
    first = await held.current()
    object.__setattr__(first, "fresh", datetime.now(UTC))
    path.unlink()
    assert await held.current() is first
    object.__setattr__(first, "end", datetime.now(UTC))
    with pytest.raises(AccessError, match="cannot read the token"):
        await held.current()


@pytest.mark.parametrize(
    ("claims", "account"),
    [
        ({"sub": "system:serviceaccount:lab:robot"}, True),
        ({"sub": "x", "typ": "ServiceAccount"}, True),
        ({"sub": "x", "typ": "service-account"}, True),
        ({"sub": "user:alice", "typ": "Bearer"}, False),
        ({}, False),
    ],
)
def test_a_service_account_is_known_by_its_token(claims: dict[str, object], account: bool) -> None:
    assert Token(jwt(**claims)).is_service_account is account


@pytest.mark.parametrize("text", ["opaque", "a.b.c", "a.b", jwt(exp="soon"), jwt(exp=1e300), jwt()])
def test_a_token_that_does_not_say_its_end_has_none(text: str) -> None:
    assert token(text, "a test").end is None


@pytest.mark.parametrize(
    ("left", "good", "says"),
    [
        (3600, True, "until "),
        (300, True, "it runs out soon; see that something renews it"),
        (-1, False, "it has run out; renew it where it comes from"),
        (None, True, "it does not say when it runs out"),
    ],
)
def test_check_tells_a_tokens_end_before_it_strikes(left: float | None, good: bool, says: str) -> None:
    end = None if left is None else datetime.now(UTC) + timedelta(seconds=left)
    finding = token_finding(Token("x", end), "the file t", 600)
    assert (finding.good, says in finding.text) == (good, True), finding
    account = token_finding(Token(jwt(sub="system:serviceaccount:a:b")), "the file t", 600)
    assert (account.good, "sign in as a person" in account.text) == (False, True)


def test_a_person_is_what_the_stand_in_signs_in(platform: Platform) -> None:
    assert not Token(platform.sign_in()).is_service_account
    assert Token(platform.sign_in(Person(service_account=True))).is_service_account
