"""Compiling works for a user without a name, without a home and with a read-only one, as containers have them."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import REPOSITORY, Processes
from speedrun_trainer.launch import compiler_caches

NOBODY = "12345"
FOLDERS = """
import os
from speedrun_trainer.launch import compiler_caches
compiler_caches()
from torch._inductor.runtime.cache_dir_utils import cache_dir
print(cache_dir())
print(os.environ["TORCHINDUCTOR_CACHE_DIR"])
open(os.environ["TRITON_CACHE_DIR"] + "/writable", "x").close()
"""

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("setpriv"), reason="becomes another user: needs root"
)


@pytest.fixture
def readable(smoke_data: Path) -> Iterator[Path]:
    """The trainer and the smoke data where every user can read them."""
    folder = Path(tempfile.mkdtemp(prefix="speedrun-"))
    folder.chmod(0o755)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPOSITORY / "trainer/speedrun_trainer", folder / "speedrun_trainer", ignore=ignored)
    shutil.copytree(smoke_data, folder / "data")
    (folder / "data").chmod(0o755)
    yield folder
    shutil.rmtree(folder)
    shutil.rmtree(Path(tempfile.gettempdir()) / f"speedrun-compiler-{NOBODY}", ignore_errors=True)


def as_nobody(folder: Path, *environment: str) -> list[str]:
    user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    named = [f"PATH={os.environ['PATH']}", f"PYTHONPATH={folder}", "PYTHONDONTWRITEBYTECODE=1", *environment]
    return ["env", "-i", *named, *user, sys.executable]


@pytest.mark.parametrize(
    "environment",
    [pytest.param([], id="no home"), pytest.param(["HOME=/proc"], id="read-only home", marks=pytest.mark.full)],
)
def test_a_user_without_a_name_has_folders_to_compile_in(
    readable: Path, processes: Processes, environment: list[str]
) -> None:
    """BR-084: by the function with which torch finds its own, which fails for such a user unless it is told."""
    code, out, err = processes.run([*as_nobody(readable, *environment), "-c", FOLDERS])
    assert code == 0, err
    assert out.splitlines() == [f"{tempfile.gettempdir()}/speedrun-compiler-{NOBODY}/inductor"] * 2


def test_a_folder_that_another_user_made_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "USER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    planted = tmp_path / f"speedrun-compiler-{os.getuid()}"
    planted.mkdir()
    os.chown(planted, int(NOBODY), int(NOBODY))
    compiler_caches()
    folder = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    assert folder.is_dir() and planted not in folder.parents
    assert not list(planted.iterdir())
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "USER"):
        monkeypatch.setenv(name, os.environ.pop(name))


@pytest.mark.full
@pytest.mark.skipif(not shutil.which("g++"), reason="the compiler for a CPU needs g++")
def test_a_user_without_a_name_trains_a_compiled_model(readable: Path, processes: Processes) -> None:
    train = ["-m", "speedrun_trainer.train", "--data", str(readable / "data"), "--device", "cpu", "--compile", "yes"]
    short = ["--steps", "3", "--val-tokens", "2048", "--val-every", "0", "--warmup-steps", "1"]
    code, out, err = processes.run([*as_nobody(readable), *train, *short], within=900)
    assert code == 0, err
    assert "\nstep:3/3 val_loss:2." in out
