"""The package that goes with a job: the same bytes for the same files, and nothing but sources."""

from __future__ import annotations

import gzip
import io
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from speedrun_operator.backends.slurm.package import pack


def names(data: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return archive.getnames()


def test_it_holds_the_sources_under_their_own_name() -> None:
    held = names(pack("speedrun_trainer"))
    assert "speedrun_trainer/__init__.py" in held
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
    pack.cache_clear()
    return folder


def test_caches_and_hidden_files_stay_behind_and_nothing_is_imported(package: Path) -> None:
    assert names(pack("freshly_made")) == [
        "freshly_made/__init__.py",
        "freshly_made/inner/data.yaml",
        "freshly_made/py.typed",
    ]


def test_the_same_files_give_the_same_bytes(package: Path) -> None:
    first = pack("freshly_made")
    pack.cache_clear()
    for path in package.rglob("*"):
        path.chmod(0o700)
        path.touch()
    assert pack("freshly_made") == first
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(first))) as archive:
        for entry in archive:
            assert (entry.mode, entry.uid, entry.gid, entry.uname, entry.mtime) == (0o644, 0, 0, "", 0)


def test_another_process_packs_the_same_bytes() -> None:
    name = "speedrun_trainer"
    code = f"import sys; from {pack.__module__} import pack; sys.stdout.buffer.write(pack(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", code, name], capture_output=True, check=True)
    assert done.stdout == pack(name)


def test_a_package_that_is_not_installed_is_named() -> None:
    with pytest.raises(FileNotFoundError, match="no_such_package is not installed beside the operator"):
        pack("no_such_package")
