"""The login connection against a real sshd: what a caller sees when all is well, and when each thing goes wrong."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from cluster.login_sshd import HOST, SSHD, Account, LoginSshd
from speedrun_operator.login import Completed, Login, LoginError, NotRun, OutcomeUnknown, Reason

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sshd logs in a throw-away account"),
    pytest.mark.skipif(not SSHD.exists(), reason=f"needs {SSHD} (package openssh-server)"),
]

OpenLogin = Callable[..., Login]


@pytest.fixture(scope="module")
def account() -> Iterator[Account]:
    Account.remove_leftovers()
    account = Account.make()
    yield account
    account.remove()


@pytest.fixture
def sshd(account: Account) -> Iterator[LoginSshd]:
    """A running server, with a folder that the account may pass and an account as new."""
    account.use_shell("/bin/bash")
    account.empty()
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        server = LoginSshd(Path(name), account)
        server.start()
        yield server
        server.stop()


@pytest.fixture
async def open_login(sshd: LoginSshd) -> AsyncIterator[OpenLogin]:
    """`open_login(**changes)`: a login on the server with these target settings, closed after the test."""
    opened: list[Login] = []

    def make(**changes: Any) -> Login:
        opened.append(Login(sshd.target(**changes)))
        return opened[-1]

    yield make
    for login in opened:
        await login.close()


@pytest.fixture
def login(open_login: OpenLogin) -> Login:
    return open_login()


async def until(what: str, condition: Callable[[], bool], limit: float = 30) -> None:
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {limit} s"
        await asyncio.sleep(0.01)


async def not_run(call: Awaitable[object], reason: Reason) -> NotRun:
    with pytest.raises(NotRun) as failure:
        await call
    assert failure.value.reason == reason, failure.value.message
    return failure.value


async def unknown(call: Awaitable[object], reason: Reason) -> OutcomeUnknown:
    with pytest.raises(OutcomeUnknown) as failure:
        await call
    assert failure.value.reason == reason, failure.value.message
    return failure.value


async def when_it_runs(login: Login, script: str, limit: float = 30) -> Completed:
    """Do what a caller does after NotRun: try again when the error says."""
    deadline = time.monotonic() + limit
    while True:
        try:
            return await login.run(script, timeout=limit)
        except NotRun as error:
            assert time.monotonic() < deadline, error.message
            await asyncio.sleep(error.retry_after or 0.05)


# Commands --------------------------------------------------------------------------------------------------------


async def test_output_errors_and_exit_code_come_apart(login: Login, account: Account) -> None:
    done = await login.run("pwd; whoami; echo $LC_ALL; echo trouble >&2; exit 3", timeout=20)
    assert done == Completed(f"{account.home}\n{account.name}\nC\n".encode(), b"trouble\n", 3)


@pytest.mark.parametrize("size", [0, 1, 1 << 20, 5_000_001])
async def test_binary_stdin_reaches_the_script_intact(login: Login, size: int) -> None:
    data = os.urandom(size)
    assert await login.run("cat", stdin=data, timeout=30, max_output=size) == Completed(data, b"", 0)


async def test_stdin_that_nobody_reads_holds_nothing_up(login: Login) -> None:
    assert (await login.run("echo done", stdin=bytes(8 << 20), timeout=20)).stdout == b"done\n"
    assert (await login.run("head -c 3", stdin=b"abc" + bytes(8 << 20), timeout=20)).stdout == b"abc"


async def test_a_process_left_behind_does_not_hold_the_answer(login: Login) -> None:
    """It goes on, too: only commands without an answer are ended."""
    done = await login.run("(sleep 300; echo late) & echo $!", timeout=20)
    pid = int(done.stdout)
    assert (await login.run(f"ps -o args= -p {pid}", timeout=20)).exit_code == 0
    await login.run(f"kill {pid}", timeout=20)


async def test_each_command_is_one_session_of_one_connection(login: Login, sshd: LoginSshd) -> None:
    answers = await asyncio.gather(*(login.run(f"echo {n}; exit {n}", timeout=30) for n in range(30)))
    assert [(int(done.stdout), done.exit_code) for done in answers] == [(n, n) for n in range(30)]
    await until("all channels closed", lambda: login.health().channels == 0)
    assert (sshd.logins(), sshd.log.read_text().count("Starting session")) == (1, 30)
    health = login.health()
    assert (health.state, health.connects, health.commands) == ("connected", 1, 30)


async def test_never_more_channels_than_allowed(open_login: OpenLogin) -> None:
    login = open_login(max_channels=3)
    counter = "n=$(mktemp -p lock); ls lock | wc -l; sleep 0.05; rm $n"
    await login.run("mkdir lock", timeout=20)
    answers = await asyncio.gather(*(login.run(counter, timeout=30) for _ in range(12)))
    assert max(int(done.stdout) for done in answers) == 3


async def test_scripts_and_stdin_are_in_no_log(login: Login, sshd: LoginSshd, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    await login.run("read -r secret; test $secret = hunter2 # hunter3", stdin=b"hunter2\n", timeout=20)
    assert "connected in" in caplog.text
    assert "hunter" not in caplog.text + sshd.log.read_text()


# Noise and strange shells ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bashrc",
    [
        "echo '*** Welcome to cluster-a ***'; echo 'scratch quota 81% used, job 99999 purged'; echo",
        "trap 'echo \"job 99999 purged\"; echo bye >&2' EXIT",
        "echo 'a note' >&2; printf 'no newline'; printf 'none here' >&2",
    ],
    ids=["before", "after", "on stderr, without newline"],
)
async def test_a_greeting_never_reaches_the_caller(
    bashrc: str, sshd: LoginSshd, account: Account, open_login: OpenLogin
) -> None:
    """BR-001: whatever a shell prints around the answer, the caller gets the answer."""
    banner = account.write("banner", "*** maintenance on Sunday ***\n")
    account.write(".bashrc", bashrc)
    sshd.stop()
    sshd.start({"Banner": banner})
    done = await open_login().run("echo '48213|PENDING|Priority'; echo warning >&2", timeout=20)
    assert done == Completed(b"48213|PENDING|Priority\n", b"warning\n", 0)


@pytest.mark.parametrize("name", ["sh", "zsh", "tcsh", "fish"])
async def test_other_login_shells(name: str, account: Account, login: Login) -> None:
    account.use_shell(str(shutil.which(name)))
    done = await login.run('cat; [[ $BASH_VERSION ]] && echo "a!b" 2>&1; exit 9', stdin=b"\0\xff", timeout=20)
    assert done == Completed(b"\0\xffa!b\n", b"", 9)


async def test_an_account_without_a_shell(account: Account, login: Login) -> None:
    account.use_shell("/usr/sbin/nologin")
    error = await not_run(login.run("true", timeout=20), Reason.SHELL_UNAVAILABLE)
    assert "This account is currently not available." in error.message


@pytest.mark.parametrize("reads", ["read -r line", "cat > /dev/null"], ids=["first line", "everything"])
async def test_a_start_up_file_that_reads_the_input(reads: str, account: Account, login: Login) -> None:
    account.write(".bashrc", reads)
    await not_run(login.run("touch proof\ntouch proof\n", timeout=20), Reason.SHELL_UNAVAILABLE)
    assert not (account.home / "proof").exists()


async def test_a_key_that_is_bound_to_another_command(sshd: LoginSshd, account: Account, login: Login) -> None:
    public = sshd.key.with_suffix(".pub").read_text()
    account.write(".ssh/authorized_keys", f'command="/bin/bash" {public}')
    await not_run(login.run("touch proof\ntouch proof\n", timeout=20), Reason.SHELL_UNAVAILABLE)
    assert not (account.home / "proof").exists()


async def test_a_server_that_ends_every_command_at_once(sshd: LoginSshd, open_login: OpenLogin) -> None:
    """Its goodbye comes with its consent, before the command could be sent."""
    host, client = asyncssh.read_private_key(sshd.directory / "host"), asyncssh.read_public_key(f"{sshd.key}.pub")
    server = await asyncssh.listen(
        HOST,
        0,
        server_host_keys=[host],
        authorized_client_keys=asyncssh.import_authorized_keys(client.export_public_key().decode()),
        process_factory=lambda process: process.exit(1),
    )
    async with server:
        port = server.get_port()
        login = open_login(port=port, known_hosts=sshd.host_line(f"[{HOST}]:{port}"))
        for _ in range(20):
            await not_run(login.run("true", timeout=5), Reason.SHELL_UNAVAILABLE)
        await until("all channels closed", lambda: login.health().channels == 0)
        assert login.health().connects == 1
        await login.close()


# Commands that do not end well -----------------------------------------------------------------------------------


def running(account: Account, command: str) -> bool:
    return subprocess.run(["pgrep", "-u", account.name, "-fx", command], capture_output=True).returncode == 0


async def test_more_output_than_allowed(account: Account, login: Login) -> None:
    error = await unknown(login.run("yes endless", timeout=20, max_output=100_000), Reason.OUTPUT_TOO_LARGE)
    assert "100000 bytes" in error.message
    assert error.stdout == b"endless\n" * 12_500
    await until("the command to be ended", lambda: not running(account, "yes endless"))
    assert await login.run("printf 12345", timeout=20, max_output=5) == Completed(b"12345", b"", 0)
    assert login.health().connects == 1


async def test_stderr_is_cut_and_the_answer_kept(login: Login) -> None:
    done = await login.run("echo first >&2; head -c 3000000 /dev/zero >&2; echo ok; exit 2", timeout=20)
    assert (done.stdout, done.exit_code, len(done.stderr)) == (b"ok\n", 2, 65536)
    assert done.stderr.startswith(b"first\n")


async def test_a_command_that_takes_too_long_is_ended(account: Account, login: Login) -> None:
    await login.run("true", timeout=20)
    error = await unknown(login.run("echo begun; echo why >&2; sleep 301", timeout=3), Reason.COMMAND_TIMEOUT)
    assert (error.stdout, error.stderr) == (b"begun\n", b"why\n")
    assert "3 s" in error.message
    await until("the command to be ended", lambda: not running(account, "sleep 301"))
    assert (await login.run("echo ok", timeout=20)).stdout == b"ok\n"
    assert login.health().connects == 1


async def test_a_cancelled_caller_ends_its_command_only(account: Account, login: Login) -> None:
    other = asyncio.create_task(login.run("sleep 0.7; echo other", timeout=20))
    caller = asyncio.create_task(login.run("sleep 302", timeout=20))
    await until("the command to run", lambda: running(account, "sleep 302"))
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    await until("the command to be ended", lambda: not running(account, "sleep 302"))
    assert (await other).stdout == b"other\n"
    assert login.health().connects == 1
    await until("all channels closed", lambda: login.health().channels == 0)


async def test_callers_that_leave_at_any_moment(login: Login) -> None:
    """Cancelled while a channel is asked for, while it opens, while the command runs: nothing is left behind."""
    await login.run("true", timeout=20)
    callers = [asyncio.create_task(login.run("echo ok", timeout=20)) for _ in range(120)]
    for index, caller in enumerate(callers):
        if index % 3:
            asyncio.get_running_loop().call_later(0.002 * index, caller.cancel)
    answers = await asyncio.gather(*callers, return_exceptions=True)
    assert [answer for answer in answers[::3] if answer != Completed(b"ok\n", b"", 0)] == []
    assert any(isinstance(answer, asyncio.CancelledError) for answer in answers)
    await until("all channels closed", lambda: login.health().channels == 0)
    assert (await asyncio.gather(*(login.run("echo ok", timeout=20) for _ in range(16))))[0].stdout == b"ok\n"
    assert login.health().connects == 1


async def test_a_shell_that_is_killed(login: Login) -> None:
    error = await unknown(login.run("echo begun; kill -9 $$", timeout=20), Reason.COMMAND_KILLED)
    assert "KILL" in error.message
    assert error.stdout == b"begun\n"


async def test_a_program_that_is_killed_is_a_result(login: Login) -> None:
    assert (await login.run("sh -c 'kill -9 $$'", timeout=20)).exit_code == 137


# The server goes away --------------------------------------------------------------------------------------------


async def test_a_connection_that_dies_under_a_command(sshd: LoginSshd, account: Account, login: Login) -> None:
    """BR-002: never an empty answer; the connection is given up and the next command opens another."""
    await login.run("true", timeout=20)
    command = asyncio.create_task(login.run("echo part; sleep 0.3; touch begun; sleep 30", timeout=20))
    await until("the command to run", lambda: (account.home / "begun").exists())
    sshd.drop_connections()
    error = await unknown(command, Reason.CONNECTION_LOST)
    assert error.stdout == b"part\n"
    assert login.health().state == "idle"
    assert (await login.run("echo '48213|RUNNING|None'", timeout=20)).stdout == b"48213|RUNNING|None\n"
    assert (login.health().connects, sshd.logins()) == (2, 2)


async def test_a_connection_that_died_while_idle_is_no_failure(sshd: LoginSshd, login: Login) -> None:
    await login.run("true", timeout=20)
    sshd.drop_connections()
    assert (await login.run("echo ok", timeout=20)).stdout == b"ok\n"
    assert login.health().connects == 2


async def test_a_server_that_is_down_and_comes_back(sshd: LoginSshd, open_login: OpenLogin) -> None:
    login = open_login(backoff_first=5)
    await login.run("true", timeout=20)
    sshd.stop()
    first = await not_run(login.run("true", timeout=20), Reason.LOGIN_UNREACHABLE)
    assert f"{HOST}:{sshd.port}" in first.message
    started = time.monotonic()
    again = await not_run(login.run("true", timeout=20), Reason.LOGIN_UNREACHABLE)
    assert time.monotonic() - started < 2, "a caller during the back-off must be told at once"
    assert again.message == first.message, "a status that shows it would be written at every try"
    assert again.retry_after is not None and 0 < again.retry_after <= 5
    assert login.health().state == "waiting"
    sshd.start()
    assert (await when_it_runs(login, "echo ok")).stdout == b"ok\n"


async def test_a_name_that_does_not_resolve(open_login: OpenLogin) -> None:
    error = await not_run(open_login(host="no-such-host.invalid").run("true", timeout=20), Reason.LOGIN_UNREACHABLE)
    assert "no-such-host.invalid does not resolve" in error.message


async def test_a_server_that_drops_each_login_is_left_alone(account: Account, open_login: OpenLogin) -> None:
    account.write(".bashrc", "kill -9 $PPID")
    login = open_login(backoff_first=30)
    with pytest.raises(LoginError) as first:
        await login.run("true", timeout=20)
    assert first.value.reason in (Reason.CONNECTION_LOST, Reason.LOGIN_BUSY)
    second = await not_run(login.run("true", timeout=20), Reason.LOGIN_BUSY)
    assert "dropped the connection" in second.message
    assert login.health().connects == 1


async def test_a_hung_server_is_noticed_and_holds_nobody(
    sshd: LoginSshd, account: Account, open_login: OpenLogin
) -> None:
    login = open_login(keepalive_interval=1, keepalive_count=5, connect_timeout=1)
    await login.run("true", timeout=20)
    command = asyncio.create_task(login.run("touch begun; sleep 300", timeout=1.5))
    await until("the command to run", lambda: (account.home / "begun").exists())
    sshd.freeze()
    await unknown(command, Reason.COMMAND_TIMEOUT)
    late = await not_run(login.run("true", timeout=0.3), Reason.LOGIN_TIMEOUT)
    assert "opened no session" in late.message
    await until("keepalive to give up", lambda: login.health().state != "connected")
    await not_run(login.run("true", timeout=5), Reason.LOGIN_TIMEOUT)
    assert login.health().channels == 0
    sshd.stop()
    sshd.start()
    assert (await when_it_runs(login, "echo ok")).stdout == b"ok\n"


async def test_callers_that_left_a_hung_server_leave_no_channel_behind(sshd: LoginSshd, login: Login) -> None:
    await login.run("true", timeout=20)
    sshd.freeze()
    callers = [asyncio.create_task(login.run("touch proof", timeout=0.2)) for _ in range(10)]
    callers += [asyncio.create_task(login.run("touch proof", timeout=20)) for _ in range(4)]
    for caller in callers[:10]:
        await not_run(caller, Reason.LOGIN_TIMEOUT)
    for caller in callers[10:]:
        caller.cancel()
    await asyncio.wait(callers)
    sshd.thaw()
    await until("all channels closed", lambda: login.health().channels == 0)
    done = await login.run("ls proof", timeout=20)
    assert done.exit_code == 2, "a command whose caller was told that it did not run has run"
    assert login.health().connects == 1


# Turned away -----------------------------------------------------------------------------------------------------


async def test_fewer_sessions_than_callers(sshd: LoginSshd, open_login: OpenLogin) -> None:
    sshd.stop()
    sshd.start({"MaxSessions": 2})
    login = open_login(max_channels=8)
    answers = await asyncio.gather(*(login.run(f"sleep 0.1; echo {n}", timeout=30) for n in range(8)))
    assert [int(done.stdout) for done in answers] == list(range(8))
    assert "no more sessions" in sshd.log.read_text()
    assert sshd.logins() == 1


async def test_no_session_at_all(sshd: LoginSshd, open_login: OpenLogin) -> None:
    sshd.stop()
    sshd.start({"MaxSessions": 0})
    login = open_login()
    error = await not_run(login.run("true", timeout=3), Reason.LOGIN_BUSY)
    assert "MaxSessions" in error.message
    assert login.health().state == "connected"


async def test_refused_in_key_exchange(sshd: LoginSshd, login: Login) -> None:
    sshd.stop()
    sshd.start({"MaxStartups": 1})
    with only_startup(sshd):
        error = await not_run(login.run("true", timeout=20), Reason.LOGIN_BUSY)
    assert "key exchange" in error.message
    assert (await when_it_runs(login, "echo ok")).stdout == b"ok\n"


@contextlib.contextmanager
def only_startup(sshd: LoginSshd) -> Iterator[None]:
    """Take the one place of MaxStartups 1: a connection that does not log in. The fixture's probe may still hold it."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        with socket.create_connection((HOST, sshd.port), timeout=10) as connection:
            if connection.recv(100).startswith(b"SSH-2.0"):
                yield
                return
        time.sleep(0.02)
    raise AssertionError("sshd took no connection within 10 s")


async def test_a_gateway_that_closes_at_once(open_login: OpenLogin) -> None:
    async with listener(lambda reader, writer: writer.close()) as port:
        await not_run(open_login(port=port).run("true", timeout=20), Reason.LOGIN_BUSY)


async def test_something_that_is_no_ssh_server(open_login: OpenLogin) -> None:
    def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-9.9-strange\r\n")

    async with listener(answer) as port:
        error = await not_run(open_login(port=port).run("true", timeout=20), Reason.LOGIN_HANDSHAKE_FAILED)
    assert "Check that an SSH server answers" in error.message


async def test_a_slow_start_is_waited_for(
    sshd: LoginSshd, open_login: OpenLogin, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A per-user login pod takes minutes: callers leave in time, the one attempt goes on, and serves who comes next."""
    gate = asyncio.Event()
    monkeypatch.setattr("speedrun_operator.login.keeper.SAY_AFTER", 0.05)
    caplog.set_level(logging.INFO)

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async def gateway(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await gate.wait()
        their_reader, their_writer = await asyncio.open_connection(HOST, sshd.port)
        await asyncio.gather(pump(reader, their_writer), pump(their_reader, writer))

    async with listener(gateway) as port:
        sshd.known_hosts.write_text(sshd.host_line(f"[{HOST}]:{port}"))
        login = open_login(port=port)
        error = await not_run(login.run("true", timeout=0.2), Reason.LOGIN_STARTING)
        assert "of at most 200 s" in error.message
        assert login.health().state == "connecting"
        assert "is starting, or slow" in caplog.text
        patient = [asyncio.create_task(login.run("echo ok", timeout=20)) for _ in range(20)]
        await asyncio.sleep(0)
        gate.set()
        assert [done.stdout for done in await asyncio.gather(*patient)] == [b"ok\n"] * 20
        assert (login.health().connects, sshd.logins()) == (1, 1)
        await login.close()


@contextlib.asynccontextmanager
async def listener(serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]) -> AsyncIterator[int]:
    """A TCP server of the test's own, whose connections end with it; yields its port."""
    writers: list[asyncio.StreamWriter] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        result = serve(reader, writer)
        if inspect.isawaitable(result):
            await result

    server = await asyncio.start_server(accept, HOST, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in writers:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


# Trust -----------------------------------------------------------------------------------------------------------


async def test_a_host_key_that_changed(sshd: LoginSshd, open_login: OpenLogin) -> None:
    """BR-006: refused before authentication, both fingerprints shown, the pin untouched; a new pin heals at once."""
    pinned = sshd.known_hosts.read_text()
    old = sshd.host_fingerprint()
    new = sshd.new_host_key()
    sshd.stop()
    sshd.start()
    login = open_login(backoff_first=60)
    error = await not_run(login.run("true", timeout=20), Reason.HOST_KEY_MISMATCH)
    assert "mismatch for 127.0.0.1" in error.message
    assert old in error.message
    assert new in error.message
    assert sshd.known_hosts.read_text() == pinned
    await not_run(login.run("true", timeout=20), Reason.HOST_KEY_MISMATCH)
    assert sshd.account.name not in sshd.log.read_text(), "the server was told a user name"
    sshd.pin()
    assert (await login.run("echo ok", timeout=20)).stdout == b"ok\n"


async def test_a_host_key_of_another_kind_is_a_mismatch_too(sshd: LoginSshd, login: Login) -> None:
    new = sshd.new_host_key(kind="ecdsa")
    sshd.stop()
    sshd.start()
    assert new in (await not_run(login.run("true", timeout=20), Reason.HOST_KEY_MISMATCH)).message


async def test_several_keys_of_one_host(sshd: LoginSshd, login: Login) -> None:
    old = sshd.host_line()
    sshd.new_host_key()
    sshd.stop()
    sshd.start()
    sshd.known_hosts.write_text(old + sshd.host_line())
    assert (await login.run("true", timeout=20)).exit_code == 0


async def test_a_revoked_host_key(sshd: LoginSshd, login: Login) -> None:
    sshd.known_hosts.write_text(sshd.host_line() + "@revoked " + sshd.host_line())
    assert "revoked" in (await not_run(login.run("true", timeout=20), Reason.HOST_KEY_MISMATCH)).message


async def test_no_known_hosts_at_all(sshd: LoginSshd, login: Login) -> None:
    """BR-006: said, with the way to get them; no key is trusted silently."""
    sshd.known_hosts.unlink()
    error = await not_run(login.run("true", timeout=20), Reason.KNOWN_HOSTS_UNUSABLE)
    assert f"ssh-keyscan -p {sshd.port} {HOST}" in error.message
    assert sshd.log.read_text().count("Connection from") <= 1, "only the fixture's own probe of the port"
    sshd.pin()
    assert (await login.run("true", timeout=20)).exit_code == 0


async def test_a_host_that_known_hosts_does_not_name(sshd: LoginSshd, open_login: OpenLogin) -> None:
    login = open_login(known_hosts=sshd.host_line("other.example"))
    error = await not_run(login.run("true", timeout=20), Reason.HOST_KEY_UNKNOWN)
    assert sshd.host_line().rsplit(" ", 1)[0] in error.message, "the line to add"
    assert sshd.host_fingerprint() in error.message


async def test_a_key_that_the_server_does_not_accept(sshd: LoginSshd, open_login: OpenLogin) -> None:
    right = sshd.key.read_bytes()
    stranger = sshd.make_key("stranger")
    login = open_login(key=stranger, backoff_first=60)
    error = await not_run(login.run("true", timeout=20), Reason.LOGIN_AUTHENTICATION_FAILED)
    assert sshd.account.name in error.message
    assert sshd.fingerprint(stranger) in error.message
    stranger.write_bytes(right)
    assert (await login.run("true", timeout=20)).exit_code == 0, "a new key must be tried without waiting"


async def test_a_changed_pin_or_key_moves_a_live_connection(sshd: LoginSshd, login: Login) -> None:
    running = asyncio.create_task(login.run("sleep 0.5; echo old", timeout=20))
    await until("the command to run", lambda: login.health().channels == 1)
    sshd.known_hosts.write_text("# reviewed\n" + sshd.host_line())
    assert (await login.run("echo new", timeout=20)).stdout == b"new\n"
    assert (await running).stdout == b"old\n"
    assert login.health().connects == 2
    sshd.known_hosts.unlink()
    assert (await login.run("echo same", timeout=20)).stdout == b"same\n"
    assert login.health().connects == 2


async def test_the_machine_s_own_ssh_set_up_is_not_used(
    sshd: LoginSshd, open_login: OpenLogin, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = sshd.directory / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "config").write_text("Host *\n  Port 1\n  User nobody\n  UserKnownHostsFile /dev/null\n")
    shutil.copy(sshd.key, home / ".ssh" / "id_ed25519")
    (home / ".ssh" / "known_hosts").write_text(sshd.host_line())
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("SSH_AUTH_SOCK", str(home / "agent"))
    assert (await open_login().run("true", timeout=20)).exit_code == 0
    stranger = open_login(key=sshd.make_key("stranger"))
    await not_run(stranger.run("true", timeout=20), Reason.LOGIN_AUTHENTICATION_FAILED)
    unpinned = open_login(known_hosts=sshd.host_line("other.example"))
    await not_run(unpinned.run("true", timeout=20), Reason.HOST_KEY_UNKNOWN)


AS_A_POD = """
import asyncio, os, sys
sys.path[:0] = {path!r}
os.setgroups([54321]); os.setgid(12345); os.setuid(12345)
from pathlib import Path
from speedrun_operator.login import Login, LoginTarget
async def main():
    login = Login(LoginTarget(host={host!r}, port={port}, user={user!r}, key=Path({key!r}), known_hosts={line!r}))
    print((await login.run("whoami", timeout=20)).stdout.decode())
    await login.close()
asyncio.run(main())
"""


def test_from_a_pod_with_a_mounted_key_and_no_user_name(sshd: LoginSshd, account: Account) -> None:
    """BR-009: an arbitrary user id without a passwd line, a key that is root's, mode 0440, read through a group."""
    os.chown(sshd.key, 0, 54321)
    sshd.key.chmod(0o440)
    code = AS_A_POD.format(
        path=sys.path, host=HOST, port=sshd.port, user=account.name, key=str(sshd.key), line=sshd.host_line()
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, env={})
    assert (done.stdout.strip(), done.stderr) == (account.name, "")


# The end ---------------------------------------------------------------------------------------------------------


async def test_closing(sshd: LoginSshd, account: Account, login: Login) -> None:
    command = asyncio.create_task(login.run("touch begun; sleep 303", timeout=20))
    await until("the command to run", lambda: (account.home / "begun").exists())
    await login.close()
    await unknown(command, Reason.CONNECTION_LOST)
    await not_run(login.run("true", timeout=20), Reason.LOGIN_CLOSED)
    assert (login.health().state, login.health().channels) == ("closed", 0)
    await login.close()


async def test_closing_ends_a_connection_that_was_replaced(sshd: LoginSshd, account: Account, login: Login) -> None:
    command = asyncio.create_task(login.run("touch begun; sleep 304", timeout=20))
    await until("the command to run", lambda: (account.home / "begun").exists())
    sshd.known_hosts.write_text("# reviewed\n" + sshd.host_line())
    await login.run("true", timeout=20)
    await login.close()
    await unknown(command, Reason.CONNECTION_LOST)


async def test_closing_while_connecting(open_login: OpenLogin) -> None:
    async with listener(lambda reader, writer: None) as port:
        login = open_login(port=port)
        command = asyncio.create_task(login.run("true", timeout=20))
        await until("the attempt", lambda: login.health().state == "connecting")
        await login.close()
        await not_run(command, Reason.LOGIN_CLOSED)
