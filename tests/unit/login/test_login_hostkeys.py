"""Which keys known_hosts accepts for a login service, in each form that such files have."""

from __future__ import annotations

import subprocess
from pathlib import Path

import asyncssh
import pytest

from speedrun_operator.login import LoginTarget, NotRun, Reason
from speedrun_operator.login.hostkeys import find_pins, refusal

ONE, TWO, THREE = (asyncssh.generate_private_key("ssh-ed25519").convert_to_public() for _ in range(3))
RSA = asyncssh.generate_private_key("ssh-rsa", key_size=2048).convert_to_public()


def line(name: str, key: asyncssh.SSHKey) -> str:
    return f"{name} {key.export_public_key('openssh').decode().strip()}\n"


def target(host: str = "login.example", port: int = 22) -> LoginTarget:
    return LoginTarget(host=host, port=port, user="alice", key=b"", known_hosts="unused")


def hashed(text: str, folder: Path) -> str:
    """The same lines with hashed names, as OpenSSH writes them."""
    path = folder / "known_hosts"
    path.write_text(text)
    subprocess.run(["ssh-keygen", "-Hf", path], check=True, capture_output=True)
    return path.read_text()


@pytest.mark.parametrize(
    ("text", "port", "keys"),
    [
        (line("login.example", ONE), 22, {ONE}),
        (line("[login.example]:22", ONE), 22, {ONE}),
        (line("[login.example]:22", ONE) + line("login.example", TWO), 22, {ONE, TWO}),
        (line("login.example,10.0.0.1", ONE) + line("login.example", RSA), 22, {ONE, RSA}),
        (line("*.example", ONE), 22, {ONE}),
        (line("[login.example]:2222", ONE) + line("login.example", TWO), 2222, {ONE}),
        (line("login.example", TWO), 2222, {TWO}),
        (line("[login.example]:2222", ONE), 22, set()),
        (line("other.example", ONE), 22, set()),
        ("# comment\n\n" + line("login.example", ONE), 22, {ONE}),
        (line("login.example", ONE) * 2, 22, {ONE}),
    ],
    ids=range(11),
)
def test_lines_that_match(text: str, port: int, keys: set[asyncssh.SSHKey]) -> None:
    assert set(find_pins(text, target(port=port)).keys) == keys


def test_hashed_names_match(tmp_path: Path) -> None:
    text = hashed(line("login.example", ONE) + line("[login.example]:2222", TWO), tmp_path)
    assert "login.example" not in text
    assert find_pins(text, target()).keys == (ONE,)
    assert find_pins(text, target(port=2222)).keys == (TWO,)


def test_markers() -> None:
    text = line("login.example", ONE) + line("@revoked login.example", TWO) + line("@cert-authority *.example", THREE)
    pins = find_pins(text, target())
    assert (pins.keys, pins.revoked, pins.authorities) == ((ONE,), (TWO,), (THREE,))
    assert pins.algorithms()[0].endswith("-cert-v01@openssh.com")


def test_pinned_kinds_of_key_are_asked_for_first_and_others_still() -> None:
    algorithms = find_pins(line("login.example", RSA), target()).algorithms()
    assert algorithms[0] == "rsa-sha2-256"
    assert "ssh-ed25519" in algorithms
    assert len(algorithms) == len(set(algorithms))


@pytest.mark.parametrize("rubbish", ["hunter2", "@friend login.example ssh-ed25519 AAAA"])
def test_a_malformed_line_is_named_by_number_and_not_quoted(rubbish: str) -> None:
    with pytest.raises(NotRun) as failure:
        find_pins(line("login.example", ONE) + rubbish + "\n", target())
    assert failure.value.reason == Reason.KNOWN_HOSTS_UNUSABLE
    assert failure.value.message.startswith("Line 2 of known_hosts")
    assert rubbish not in failure.value.message


def test_a_mismatch_shows_every_fingerprint() -> None:
    pins = find_pins(line("login.example", ONE) + line("login.example", RSA), target())
    error = refusal(target(), pins, TWO, "Host key is not trusted")
    assert error.reason == Reason.HOST_KEY_MISMATCH
    assert "login.example" in error.message
    assert all(key.get_fingerprint() in error.message for key in (ONE, RSA, TWO))


def test_an_unknown_host_gets_the_line_to_add() -> None:
    pins = find_pins(line("other.example", ONE), target(port=2222))
    error = refusal(target(port=2222), pins, TWO, "Host key is not trusted")
    assert error.reason == Reason.HOST_KEY_UNKNOWN
    assert TWO.get_fingerprint() in error.message
    assert line("[login.example]:2222", TWO).strip() in error.message
