"""A Speedrun's code, looked up by the real remote command with the real git."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from speedrun_operator.api.phases import Reason
from speedrun_operator.api.spec import KeyRef
from speedrun_operator.backends.slurm.sources import SlurmSources
from speedrun_operator.recipes.recipe import Recipe, shipped
from speedrun_operator.source.resolved import Source, Unresolved, Wanted
from testbed.pki import Authority
from unit.source.gits import LocalLogin, Repository, https

RECIPE = shipped()["modded-nanogpt"]
ROOTS = tuple(each.root for each in RECIPE.layouts)
PLAIN = RECIPE.model_copy(update={"layouts": ()})
TOKEN = "ghp_0123456789abcdefSECRET"


@pytest.fixture
def login(tmp_path: Path) -> LocalLogin:
    home = tmp_path / "home"
    home.mkdir()
    return LocalLogin(home)


@pytest.fixture
def upstream(tmp_path: Path) -> Repository:
    """Code of the single file, then of the package, with a branch, tags and a pull request."""
    made = Repository(tmp_path / "served" / "upstream")
    made.commit({"train_gpt.py": "print('one')\n"})
    made.git("tag", "-a", "v1", "-m", "annotated")
    made.git("tag", "light")
    made.git("branch", "single")
    made.commit({"track_1_short/__init__.py": "", "train_gpt.py": "print('two')\n"})
    made.git("update-ref", "refs/pull/7/head", made.commit({"train_gpt.py": "print('pull')\n"}))
    made.git("reset", "-q", "--hard", "HEAD~1")
    return made


def ask(login: LocalLogin, wanted: Wanted, recipe: Recipe = RECIPE, secret: bytes = b"") -> Source | Unresolved:
    return asyncio.run(SlurmSources(login).resolve(wanted, recipe, secret))  # type: ignore[arg-type]


def at(repository: Repository | str, revision: str = "HEAD", **more: object) -> Wanted:
    where = str(repository.path) if isinstance(repository, Repository) else repository
    return replace(Wanted(where, revision, roots=ROOTS), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("revision", "commit", "layout"),
    [
        ("HEAD", "main", "package"),
        ("main", "main", "package"),
        ("single", "single", "single-file"),
        ("v1", "single", "single-file"),  # of an annotated tag the commit, not the tag
        ("light", "single", "single-file"),
        ("pull/7/head", "refs/pull/7/head", "package"),
        ("refs/heads/single", "single", "single-file"),
    ],
)
def test_a_revision_is_resolved_to_its_commit_and_layout(
    login: LocalLogin, upstream: Repository, revision: str, commit: str, layout: str
) -> None:
    wanted = upstream.git("rev-parse", commit).strip()
    found = ask(login, at(upstream, revision))
    assert found == Source(str(upstream.path), revision, wanted, layout=layout)
    assert len(login.commands) == 1


def test_a_commit_needs_no_name(login: LocalLogin, upstream: Repository) -> None:
    commit = upstream.git("rev-parse", "refs/pull/7/head").strip()
    assert ask(login, at(upstream, commit)) == Source(str(upstream.path), commit, commit, layout="package")


def test_nothing_is_left_on_the_login_node(login: LocalLogin, upstream: Repository, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    login.environment["TMPDIR"] = str(scratch)
    assert isinstance(ask(login, at(upstream)), Source)
    assert [*scratch.iterdir(), *login.home.iterdir()] == []


@pytest.mark.parametrize(
    ("revision", "says"),
    [
        ("mian", "has no branch, tag or commit mian; an abbreviated commit needs all 40"),
        ("f411b3d", "an abbreviated commit needs all 40 characters; push it, or correct it"),
        ("pull/8/head", "has no branch, tag or commit pull/8/head; push it"),
        ("ma", "has no branch, tag or commit ma"),
        ("0" * 40, f"has no branch, tag or commit {'0' * 40}"),
    ],
)
def test_an_unknown_revision_is_refused_for_good(
    login: LocalLogin, upstream: Repository, revision: str, says: str
) -> None:
    found = ask(login, at(upstream, revision))
    assert isinstance(found, Unresolved)
    assert (found.reason, found.heals) == (Reason.UNKNOWN_REVISION, False)
    assert says in found.message


def test_a_name_of_two_commits_is_refused_with_what_to_write(login: LocalLogin, upstream: Repository) -> None:
    upstream.git("branch", "both", "single")
    upstream.git("tag", "both", "main")
    found = ask(login, at(upstream, "both"))
    assert isinstance(found, Unresolved)
    assert (found.reason, found.heals) == (Reason.UNKNOWN_REVISION, False)
    assert "write refs/heads/both or refs/tags/both" in found.message
    assert isinstance(ask(login, at(upstream, "refs/tags/both")), Source)


def test_code_of_something_else_is_refused(login: LocalLogin, upstream: Repository) -> None:
    upstream.git("rm", "-q", "-r", "train_gpt.py", "track_1_short")
    upstream.commit({"README.md": "something else"})
    found = ask(login, at(upstream))
    assert isinstance(found, Unresolved)
    assert (found.reason, found.heals) == (Reason.UNSUPPORTED_SOURCE, False)
    assert "neither track_1_short nor train_gpt.py at its root" in found.message


def test_a_recipe_without_layouts_asks_for_the_commit_alone(login: LocalLogin, upstream: Repository) -> None:
    found = ask(login, at(upstream, "main", roots=()), PLAIN)
    assert found == Source(str(upstream.path), "main", upstream.head)


def test_a_repository_that_is_not_there(login: LocalLogin, tmp_path: Path) -> None:
    found = ask(login, at(str(tmp_path / "nothing"), "main"))
    assert isinstance(found, Unresolved)
    assert (found.reason, found.heals) == (Reason.SOURCE_NOT_FOUND, False)
    assert "spec.recipe.source.secretRef" in found.message


def test_a_server_that_does_not_answer_is_asked_again(login: LocalLogin) -> None:
    found = ask(login, at("https://127.0.0.1:9/x", "main"))
    assert isinstance(found, Unresolved)
    assert (found.reason, found.heals) == (Reason.SOURCE_UNREACHABLE, True)
    assert "cannot be asked from the login node" in found.message


def test_without_git_it_waits_for_one(login: LocalLogin, upstream: Repository, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    login.environment["PATH"] = f"{tmp_path / 'bin'}:/nowhere"
    found = ask(login, at(upstream), RECIPE)
    assert isinstance(found, Unresolved)
    assert (found.reason, found.heals) == (Reason.GIT_MISSING, True)


# Private repositories ----------------------------------------------------------------------------------------------


@pytest.fixture
def private(tmp_path: Path, login: LocalLogin, upstream: Repository) -> Iterator[str]:
    """The repository behind a token; the account would store what git is told."""
    authority = Authority(tmp_path / "pki")
    authority.issue("server", "127.0.0.1", server=True)
    login.environment["GIT_SSL_CAINFO"] = str(tmp_path / "pki" / "ca.crt")
    (login.home / ".gitconfig").write_text("[credential]\n  helper = store\n")
    certificate, key = (tmp_path / "pki" / f"server.{end}" for end in ("crt", "key"))
    with https(upstream.path.parent, certificate, key, TOKEN) as url:
        yield f"{url}/upstream/.git"


@pytest.mark.parametrize("secret", [TOKEN, f"me:{TOKEN}"])
def test_a_token_opens_a_private_repository_and_is_stored_nowhere(
    login: LocalLogin, private: str, upstream: Repository, secret: str
) -> None:
    wanted = at(private, "main", secret=KeyRef(name="mine", key="token"))
    found = ask(login, wanted, secret=secret.encode())
    assert found == Source(private, "main", upstream.head, layout="package")
    assert not any(TOKEN in text for text in login.commands)
    assert not any(TOKEN.encode() in path.read_bytes() for path in login.home.rglob("*") if path.is_file())


def test_a_wrong_token_waits_for_another(login: LocalLogin, private: str) -> None:
    wanted = at(private, "main", secret=KeyRef(name="mine", key="token"))
    found = ask(login, wanted, secret=b"ghp_wrong")
    assert isinstance(found, Unresolved)
    assert (found.reason, found.heals) == (Reason.SOURCE_REFUSED, True)
    assert "put credentials that may read it into the Secret mine, key token" in found.message
    assert "ghp_wrong" not in found.message


def test_a_private_repository_without_a_token_is_refused_with_the_field(login: LocalLogin, private: str) -> None:
    found = ask(login, at(private, "main"))
    assert isinstance(found, Unresolved)
    assert (found.reason, found.heals) == (Reason.SOURCE_NOT_FOUND, False)
    assert "name a Secret with a token in spec.recipe.source.secretRef" in found.message


# A path ------------------------------------------------------------------------------------------------------------


def of(path: Path | str) -> Wanted:
    return Wanted(None, "", str(path), ROOTS, ("data/fineweb10B",))


def test_a_clean_checkout_is_its_commit(login: LocalLogin, upstream: Repository) -> None:
    found = ask(login, of(upstream.path))
    assert isinstance(found, Source)
    assert (found.commit, found.dirty, found.layout, found.path) == (
        upstream.head,
        False,
        "package",
        str(upstream.path),
    )
    assert found.key == Source("elsewhere", "main", upstream.head).key


Change = Callable[[Path], object]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda path: (path / "train_gpt.py").write_text("print('mine')\n"), id="changed"),
        pytest.param(lambda path: (path / "new.py").write_text("1\n"), id="new"),
        pytest.param(lambda path: (path / "train_gpt.py").unlink(), id="removed"),
    ],
)
def test_a_changed_checkout_is_dirty_and_no_longer_the_same(
    login: LocalLogin, upstream: Repository, change: Change
) -> None:
    clean = ask(login, of(upstream.path))
    change(upstream.path)
    found = ask(login, of(upstream.path))
    assert isinstance(found, Source) and isinstance(clean, Source)
    assert (found.commit, found.dirty) == (upstream.head, True)
    assert found.content != clean.content
    assert found.key != clean.key
    assert found == ask(login, of(upstream.path))


def test_data_and_ignored_files_are_no_code(login: LocalLogin, upstream: Repository) -> None:
    upstream.commit({".gitignore": "logs/\n"})
    clean = ask(login, of(upstream.path))
    for name in ("data/fineweb10B/x.bin", "logs/1.txt"):
        (upstream.path / name).parent.mkdir(parents=True)
        (upstream.path / name).write_text("much")
    assert ask(login, of(upstream.path)) == clean


def test_a_directory_that_is_no_checkout_has_no_commit(login: LocalLogin, tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "train_gpt.py").write_text("1\n")
    found = ask(login, of(tmp_path / "plain"))
    assert isinstance(found, Source)
    assert (found.commit, found.dirty, found.layout) == (None, True, "single-file")
    (tmp_path / "plain" / "train_gpt.py").write_text("22\n")
    again = ask(login, of(tmp_path / "plain"))
    assert isinstance(again, Source) and again.key != found.key


def test_a_path_that_is_not_there_is_waited_for(login: LocalLogin) -> None:
    found = ask(login, of("~/nanogpt"))
    assert isinstance(found, Unresolved)
    assert (found.reason, found.heals) == (Reason.SOURCE_PATH_MISSING, True)
    assert "spec.recipe.source.path: ~/nanogpt is no directory that the login user may read" in found.message


# Cost --------------------------------------------------------------------------------------------------------------


def test_many_that_want_the_same_ask_once_and_again_after_a_minute(login: LocalLogin, upstream: Repository) -> None:
    now = [100.0]
    sources = SlurmSources(login, monotonic=lambda: now[0])  # type: ignore[arg-type]

    async def both() -> None:
        first, second = await asyncio.gather(*(sources.resolve(at(upstream), RECIPE, b"") for _ in range(2)))
        assert first == second

    asyncio.run(both())
    assert len(login.commands) == 1
    asyncio.run(sources.resolve(at(upstream), RECIPE, b"another secret"))
    assert len(login.commands) == 2
    now[0] += 61
    upstream.commit({"train_gpt.py": "print('three')\n"})
    found = asyncio.run(sources.resolve(at(upstream), RECIPE, b""))
    assert isinstance(found, Source) and found.commit == upstream.head
    assert len(login.commands) == 3


def test_the_key_follows_what_runs() -> None:
    code = Source("https://a/x", "main", "1" * 40)
    keys = {
        code.key,
        replace(code, commit="2" * 40).key,
        code.patched(b"one").key,
        code.patched(b"two").key,
        Source(path="/a", content="c").key,
        Source(path="/b", content="c").key,
        Source(path="/a", content="d").key,
    }
    assert len(keys) == 7
    assert code.patched(b"one").patch_hash == hashlib.sha256(b"one").hexdigest()
    assert Source.of(code.summary()) == code
