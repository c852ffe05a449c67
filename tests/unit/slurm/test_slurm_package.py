"""What goes with a job: the same bytes for the same files, of a package nothing but sources, and what is sealed."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from speedrun_operator.backends.package import sources
from speedrun_operator.backends.slurm.parcel import parcel
from speedrun_operator.sealed.sealed import Sealed
from unit.slurm.plans import planned


def pack(name: str) -> bytes:
    return parcel(replace(planned(), package=name))


def names(data: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return archive.getnames()


def test_it_holds_the_sources_under_their_own_name() -> None:
    held = names(pack("speedrun_trainer"))
    assert "code/speedrun_trainer/__init__.py" in held
    assert held == sorted(held)
    assert {Path(name).suffix for name in held} <= {".py", ".typed"}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An importable package of this test's own."""
    folder = tmp_path / "freshly_made"
    (folder / "inner" / "__pycache__").mkdir(parents=True)
    for name, text in {"__init__.py": "raise SystemExit\n", "inner/data.yaml": "a: 1\n", "py.typed": ""}.items():
        (folder / name).write_text(text)
    for name in ("inner/__pycache__/x.pyc", ".hidden", "inner/.swap.py"):
        (folder / name).write_text("no source")
    monkeypatch.syspath_prepend(tmp_path)
    sources.cache_clear()
    return folder


def test_caches_and_hidden_files_stay_behind_and_nothing_is_imported(package: Path) -> None:
    assert names(pack("freshly_made")) == [
        "code/freshly_made/__init__.py",
        "code/freshly_made/inner/data.yaml",
        "code/freshly_made/py.typed",
    ]


def test_the_same_files_give_the_same_bytes(package: Path) -> None:
    first = pack("freshly_made")
    sources.cache_clear()
    for path in package.rglob("*"):
        path.chmod(0o700)
        path.touch()
    assert pack("freshly_made") == first
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(first))) as archive:
        for entry in archive:
            assert (entry.mode, entry.uid, entry.gid, entry.uname, entry.mtime) == (0o600, 0, 0, "", 0)


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def test_another_process_packs_the_same_bytes() -> None:
    name = "speedrun_trainer"
    code = (
        "import sys; from dataclasses import replace; from speedrun_operator.backends.slurm.parcel import parcel; "
        "from unit.slurm.plans import planned; "
        "sys.stdout.buffer.write(parcel(replace(planned(), package=sys.argv[1])))"
    )
    done = subprocess.run([sys.executable, "-c", code, name], capture_output=True, check=True, env=environment())
    assert done.stdout == pack(name)


def test_a_package_that_is_not_installed_is_named() -> None:
    with pytest.raises(FileNotFoundError, match="no_such_package is not installed beside the operator"):
        pack("no_such_package")


def test_without_anything_to_send_there_is_no_archive() -> None:
    assert parcel(planned()) == b""
    assert parcel(replace(planned(), sealed=Sealed())) == b""


def test_secrets_and_the_patch_are_files_of_their_owner_alone() -> None:
    sealed = Sealed((("HF_TOKEN", "hf_x\ny"),), "ghp_x", ("me", "machine m login me password p\n"), b"diff --git a b\n")
    with tarfile.open(fileobj=io.BytesIO(parcel(replace(planned(), sealed=sealed)))) as archive:
        held = {each.name: (each.mode, archive.extractfile(each).read()) for each in archive}  # type: ignore[union-attr]
    assert held == {
        "patch.diff": (0o600, b"diff --git a b\n"),
        "secrets": (
            0o600,
            b"env\0HF_TOKEN\0hf_x\ny\0git\0\0ghp_x\0registry\0me\0machine m login me password p\n\0",
        ),
    }


def test_what_is_sealed_is_in_no_text_of_a_plan() -> None:
    sealed = Sealed((("HF_TOKEN", "hf_x"),), "ghp_x", ("me", "machine m password p"), b"diff --git")
    made = replace(planned(), sealed=sealed)
    for text in (repr(sealed), str(made), repr(made), str(made.summary())):
        assert not any(secret in text for secret in ("hf_x", "ghp_x", "password p", "diff --git"))
