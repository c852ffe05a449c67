"""The settings of a login, the files that they name, and what is said about bad ones."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from speedrun_operator.login import Login, LoginTarget, NotRun, Reason

KEY = asyncssh.generate_private_key("ssh-ed25519")
HOST_LINE = "login.example " + asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()


def target(**changes: Any) -> LoginTarget:
    settings: dict[str, Any] = {
        "host": "login.example",
        "user": "cl-1a2b3c4d.alice",
        "key": KEY.export_private_key(),
        "known_hosts": HOST_LINE,
    }
    return LoginTarget(**settings | changes)


def refusal(settings: LoginTarget) -> NotRun:
    with pytest.raises(NotRun) as failure:
        Login(settings).check_files()
    return failure.value


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"host": ""}, "host"),
        ({"host": "a b"}, "host"),
        ({"user": "alice\n"}, "user"),
        ({"port": 0}, "1 to 65535"),
        ({"max_channels": 0}, "from 1 to 8"),
        ({"max_channels": 9}, "from 1 to 8"),
        ({"keepalive_count": 0}, "at least 1"),
        ({"connect_timeout": 0}, "more than 0"),
    ],
)
def test_settings_that_can_never_work_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        target(**changes)


def test_the_key_is_in_no_printed_form() -> None:
    text = repr(target(key=b"-----BEGIN hunter2")) + str(target(key=b"hunter2"))
    assert "hunter2" not in text
    assert "cl-1a2b3c4d.alice@login.example:22" in text


def test_good_files_are_accepted(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(KEY.export_private_key())
    (tmp_path / "known_hosts").write_text("# comment\n\n" + HOST_LINE)
    Login(target(key=tmp_path / "key", known_hosts=tmp_path / "known_hosts")).check_files()


@pytest.mark.parametrize(
    "text",
    [
        KEY.export_private_key("openssh").replace(b"\n", b"\r\n"),
        KEY.export_private_key("openssh").rstrip(),
        KEY.export_private_key("pkcs8-pem"),
        asyncssh.generate_private_key("ssh-rsa", key_size=2048).export_private_key("pkcs1-pem"),
    ],
    ids=["CRLF", "no newline at the end", "PKCS8", "PKCS1 RSA"],
)
def test_keys_as_people_paste_them(text: bytes) -> None:
    Login(target(key=text)).check_files()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (KEY.export_private_key("pkcs8-pem", "secret"), "Passphrase must be specified"),
        (KEY.export_public_key(), "Give a private key"),
        (b"", "Give a private key"),
        (b"not a key", "Give a private key"),
    ],
    ids=["encrypted", "public", "empty", "rubbish"],
)
def test_a_key_that_cannot_be_used(content: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "id"
    path.write_bytes(content)
    error = refusal(target(key=path))
    assert error.reason == Reason.LOGIN_KEY_UNUSABLE
    assert says in error.message
    assert str(path) in error.message
    assert "ssh-keygen -p" in error.message


def test_an_openssh_key_with_a_passphrase(tmp_path: Path) -> None:
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", str(tmp_path / "id")]
    subprocess.run(command, check=True, capture_output=True)
    error = refusal(target(key=tmp_path / "id"))
    assert error.reason == Reason.LOGIN_KEY_UNUSABLE
    assert "Passphrase must be specified" in error.message


def test_an_absent_key_is_named(tmp_path: Path) -> None:
    error = refusal(target(key=tmp_path / "absent"))
    assert error.reason == Reason.LOGIN_KEY_UNUSABLE
    assert f"Cannot read the private key {tmp_path / 'absent'}: No such file" in error.message


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "Cannot read known_hosts at"),
        (b"", "is empty"),
        (b" \n\t\n", "is empty"),
        (b"\xff\xfe", "Cannot read known_hosts at"),
    ],
    ids=["absent", "empty", "blank", "binary"],
)
def test_known_hosts_that_cannot_be_used(content: bytes | None, says: str, tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    if content is not None:
        path.write_bytes(content)
    error = refusal(target(known_hosts=path, port=2222))
    assert error.reason == Reason.KNOWN_HOSTS_UNUSABLE
    assert says in error.message
    assert str(path) in error.message
    assert "ssh-keyscan -p 2222 login.example" in error.message


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users may pass: pytest's own are closed to them."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


AS_ANOTHER_USER = """
import os, sys
sys.path[:0] = {path!r}
from pathlib import Path
from speedrun_operator.login import Login, LoginTarget, NotRun
os.setgroups([]); os.setgid(int(sys.argv[1])); os.setuid(12345)
target = LoginTarget(host="h", user="u", key=Path(sys.argv[2]), known_hosts={line!r})
try:
    Login(target).check_files()
    print("readable")
except NotRun as error:
    print(error.reason, error.message)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_a_key_of_another_owner_with_mode_0440(open_folder: Path) -> None:
    """BR-009: root's key, mode 0440, readable by the group that an fsGroup gives; and not readable at all."""
    key = open_folder / "key"
    key.write_bytes(KEY.export_private_key())
    os.chown(key, 0, 54321)
    key.chmod(0o440)
    code = AS_ANOTHER_USER.format(path=sys.path, line=HOST_LINE)

    def run(group: int) -> str:
        argv = [sys.executable, "-c", code, str(group), str(key)]
        return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=30).stdout.strip()

    assert run(54321) == "readable"
    assert run(12345).startswith(
        f"LoginKeyUnusable Cannot read the private key {key}: Permission denied (mode 0440, owner 0, group 54321). "
    )
