"""The frame around a command: what bash makes of it, and how its answer is found again."""

from __future__ import annotations

import itertools
import re
import secrets
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speedrun_operator.login.frame import EXEC_COMMAND, NOISE_KEPT, Scanner, encode

NONCE = "0123456789abcdef0123456789abcdef"
OPENING = f"SRB-{NONCE}\n".encode()
LIMIT = 1 << 20

unhurried = settings(deadline=None)  # a busy machine's pause is no failure


def closing(code: int) -> bytes:
    return f"SRE-{NONCE}-{code:03d}\n".encode()


def scan(stream: bytes, cuts: list[int] | None = None, limit: int = LIMIT) -> Scanner:
    """Feed a stream in pieces that end at `cuts`."""
    scanner = Scanner(NONCE, limit=limit)
    edges = sorted({min(cut, len(stream)) for cut in cuts or []} | {0, len(stream)})
    for start, end in itertools.pairwise(edges):
        scanner.feed(stream[start:end])
    return scanner


# Bytes of which many look like pieces of marks.
near_marks = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.sampled_from([b"SRB-", b"SRE-", b"SRB-" + NONCE.encode(), f"SRE-{NONCE}-".encode(), b"\n", OPENING[:-1]]),
    ),
    max_size=8,
).map(b"".join)
noise = near_marks.filter(lambda data: OPENING not in data)
output = near_marks.filter(lambda data: not re.search(rb"SRE-%s-\d{3}\n" % NONCE.encode(), data))
cut_points = st.lists(st.integers(0, 400), max_size=12)


@unhurried
@given(before=noise, content=output, after=st.binary(max_size=80), code=st.integers(0, 255), cuts=cut_points)
def test_the_content_is_exact_whatever_surrounds_it_and_however_it_is_cut(
    before: bytes, content: bytes, after: bytes, code: int, cuts: list[int]
) -> None:
    stream = before + OPENING + content + closing(code) + after
    scanner = scan(stream, cuts)
    assert (scanner.content, scanner.exit_code, scanner.overflow) == (content, code, False)


@unhurried
@given(before=noise, content=st.binary(max_size=200), cuts=cut_points)
def test_an_answer_without_its_closing_mark_has_no_exit_code(before: bytes, content: bytes, cuts: list[int]) -> None:
    scanner = scan(before + OPENING + content + closing(0)[:-1], cuts)
    assert scanner.exit_code is None
    assert scanner.opened
    assert scanner.content.startswith(content)


@unhurried
@given(data=noise, cuts=cut_points)
def test_output_without_an_opening_mark_is_noise(data: bytes, cuts: list[int]) -> None:
    scanner = scan(data + closing(0), cuts)
    assert (scanner.opened, scanner.exit_code, scanner.content) == (False, None, b"")
    assert scanner.noise == (data + closing(0))[:NOISE_KEPT]


@unhurried
@given(size=st.integers(0, 300), limit=st.integers(0, 300), cuts=cut_points)
def test_content_over_the_limit_is_cut_and_said(size: int, limit: int, cuts: list[int]) -> None:
    content = bytes(index % 251 for index in range(size))
    scanner = scan(OPENING + content + closing(7), cuts, limit)
    assert (scanner.content, scanner.overflow, scanner.exit_code) == (content[:limit], size > limit, 7)


def test_endless_noise_is_not_kept() -> None:
    scanner = Scanner(NONCE, limit=LIMIT)
    for _ in range(100):
        scanner.feed(b"x" * 10_000)
    scanner.feed(OPENING + b"hello" + closing(0))
    assert scanner.noise == b"x" * NOISE_KEPT
    assert scanner.content == b"hello"


def test_a_second_frame_in_the_same_stream_is_noise() -> None:
    scanner = scan(OPENING + b"one" + closing(1) + OPENING + b"two" + closing(2))
    assert (scanner.content, scanner.exit_code) == (b"one", 1)


def test_two_commands_never_share_a_nonce() -> None:
    assert encode("true", b"").nonce != encode("true", b"").nonce


def test_a_script_with_a_nul_is_refused() -> None:
    with pytest.raises(ValueError, match="NUL"):
        encode("echo a\0b", b"")


def test_a_request_does_not_show_its_script_or_stdin() -> None:
    assert "hunter2" not in repr(encode("echo hunter2", b"hunter2"))


# What bash does with it ------------------------------------------------------------------------------------------

SHELLS = [path for name in ("sh", "bash", "zsh", "tcsh", "fish") if (path := shutil.which(name))]


def answer(script: str, stdin: bytes = b"", shell: str = "/bin/sh") -> tuple[bytes, bytes, int | None]:
    """Run a request as sshd does: a login shell gets the exec command, its input is the request."""
    request = encode(script, stdin)
    done = subprocess.run([shell, "-c", EXEC_COMMAND], input=request.payload, capture_output=True, timeout=20)
    streams = []
    for data in (done.stdout, done.stderr):
        scanner = Scanner(request.nonce, limit=LIMIT)
        scanner.feed(data)
        streams.append(scanner)
    assert streams[0].exit_code == streams[1].exit_code
    return streams[0].content, streams[1].content, streams[0].exit_code


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo out; echo err >&2", (b"out\n", b"err\n", 0)),
        ("printf 'no newline'", (b"no newline", b"", 0)),
        ("", (b"", b"", 0)),
        ("# only a comment", (b"", b"", 0)),
        ("exit 3", (b"", b"", 3)),
        ("exec sh -c 'echo inner; exit 4'", (b"inner\n", b"", 4)),
        ("set -e\nfalse\necho never", (b"", b"", 1)),
        ("trap 'echo bye' EXIT; exit 5", (b"bye\n", b"", 5)),
        ("exec 1>&- 2>&-; echo x", (b"", b"", 1)),
        ("cat; cat", (b"stdin", b"", 0)),
        ("read -r -n 2 two; echo $two; cat", (b"st\ndin", b"", 0)),
        ("cat <<'END'\n$(id) `id` \"'\\\nEND", (b"$(id) `id` \"'\\\n", b"", 0)),
        ("echo 'é ünïcode'", ("é ünïcode\n".encode(), b"", 0)),
        ("printf '%s' '\x01 \x7f \x1b \r'", (b"\x01 \x7f \x1b \r", b"", 0)),
        ("echo ${tag-}${nonce-}${length-}${script-}.", (b".\n", b"", 0)),
        ("echo $LC_ALL", (b"C\n", b"", 0)),
    ],
)
def test_what_a_script_prints_and_returns(script: str, expected: tuple[bytes, bytes, int]) -> None:
    assert answer(script, b"stdin") == expected


@pytest.mark.parametrize("script", ["if", "echo 'open", "kill -TERM $BASHPID", "no-such-command"])
def test_a_script_that_goes_wrong_still_has_an_exit_code(script: str) -> None:
    _, stderr, code = answer(script)
    assert code not in (0, None)
    assert stderr != b""


def test_a_shell_that_is_killed_leaves_the_answer_open() -> None:
    request = encode("echo begun; kill -9 $$", b"")
    done = subprocess.run(["/bin/sh", "-c", EXEC_COMMAND], input=request.payload, capture_output=True, timeout=20)
    scanner = Scanner(request.nonce, limit=LIMIT)
    scanner.feed(done.stdout)
    assert (scanner.content, scanner.exit_code) == (b"begun\n", None)


@pytest.mark.parametrize("shell", SHELLS)
def test_every_login_shell_hands_the_script_to_bash(shell: str) -> None:
    stdin = bytes(range(256)) * 4
    assert answer('cat; [[ -n $BASH_VERSION ]] && echo "!$0" >&2', stdin, shell) == (stdin, b"!/bin/bash\n", 0)


@settings(max_examples=60, deadline=None)
@given(
    text=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=60),
    stdin=st.binary(max_size=200),
)
def test_any_text_and_any_stdin_travel_unchanged(text: str, stdin: bytes) -> None:
    quoted = "'" + text.replace("'", "'\\''") + "'"
    assert answer(f"printf '%s' {quoted}; cat >&2", stdin) == (text.encode(), stdin, 0)


def test_nothing_of_a_script_is_in_an_argument_list() -> None:
    in_script, in_stdin = secrets.token_hex(), secrets.token_hex().encode()
    script = f"for each in /proc/[0-9]*/cmdline; do tr '\\0' ' ' < $each; echo; done 2>/dev/null # {in_script}"
    stdout, _, code = answer(script, in_stdin)
    assert code == 0
    assert b"speedrun-login-1" in stdout  # our own bash is listed
    assert in_script.encode() not in stdout
    assert in_stdin not in stdout


@pytest.mark.parametrize("cut", [10, 60, 90])
def test_half_a_script_is_not_run(cut: int, tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    payload = encode(f"touch {proof}\n" * 3, b"").payload[:cut]
    done = subprocess.run(["/bin/sh", "-c", EXEC_COMMAND], input=payload, capture_output=True, timeout=20)
    assert (done.returncode, done.stdout) == (97, b"")
    assert not proof.exists()


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("eaten", [0, 1], ids=["plain shell", "first line eaten"])
def test_a_request_is_inert_where_our_bash_did_not_get_it(shell: str, eaten: int, tmp_path: Path) -> None:
    """A forced command may feed our input to a plain shell; a start-up file may eat its first line."""
    proof = tmp_path / "proof"
    lines = encode(f"touch {proof}\ntouch {proof}\n", b"").payload.split(b"\n", eaten)
    command = [shell] if eaten == 0 else [shell, "-c", EXEC_COMMAND]
    done = subprocess.run(command, input=lines[-1], capture_output=True, timeout=20)
    assert done.returncode == 97
    assert not proof.exists()


def test_bash_env_and_exported_functions_of_the_account_stay_out(tmp_path: Path) -> None:
    hostile = tmp_path / "env.sh"
    hostile.write_text("echo from BASH_ENV\n")
    request = encode("echo ok", b"")
    done = subprocess.run(
        ["/bin/sh", "-c", EXEC_COMMAND],
        input=request.payload,
        capture_output=True,
        timeout=20,
        env={"PATH": "/usr/bin:/bin", "BASH_ENV": str(hostile), "BASH_FUNC_printf%%": "() { echo fake; }"},
    )
    assert b"fake" not in done.stdout
    assert b"BASH_ENV" not in done.stdout
    scanner = Scanner(request.nonce, limit=LIMIT)
    scanner.feed(done.stdout)
    assert (scanner.content, scanner.exit_code) == (b"ok\n", 0)
