"""The Python that jobs run: an interpreter with torch, numpy and pytest that the job user can read.

By default a virtual environment from the system's interpreter, made once in /opt/speedrun-testbed (nothing of it lies
below root's home) and kept between beds. An installed torch is used instead where there is one.

SPEEDRUN_JOB_PYTHON  an interpreter that has torch: used as it is
TORCH_INDEX_URL      a package index with torch's CPU wheels: about 0.2 GB instead of 2.7 GB
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import time
from pathlib import Path

from testbed import users
from testbed.locks import exclusive
from testbed.part import Place
from testbed.processes import StartFailed

SYSTEM_PYTHON = Path("/usr/bin/python3")
ROOT = Path("/opt/speedrun-testbed")
CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"
TORCH = "torch"
OTHERS = ("numpy", "pytest", "hypothesis", "huggingface_hub", "safetensors", "tiktoken")
UNUSED_SECONDS = 7 * 86_400  # then an environment that another version of this file made is removed
BIG_WHEEL_MB = 100.0
PROOF = (
    "import sys, numpy, torch; a = torch.ones(64, 64) @ torch.ones(64, 64); "
    "assert a[0, 0].item() == 64; print(sys.version.split()[0], 'with torch', torch.__version__)"
)


class JobPython:
    """The job_python part of a bed. It runs no process."""

    name = "jobpython"

    def __init__(self, place: Place) -> None:
        self.place = place
        self.log = place.logs / "jobpython.log"

    def up(self) -> dict[str, str]:
        """Find or make the interpreter and prove that the job user can compute with it. Raises StartFailed."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        python = _given() or _system() or self._own()
        self._prove(python)
        return {"job_python": str(python)}

    def down(self) -> None:
        """Nothing runs; what was made stays for the next bed."""

    def _own(self) -> Path:
        """The environment for today's versions and index, made if it is not complete."""
        directory = ROOT / _key()
        python = directory / "bin" / "python"
        complete = directory / "complete"
        if complete.exists():
            complete.touch()  # used today
            return python
        ROOT.mkdir(parents=True, exist_ok=True)
        ROOT.chmod(0o755)
        with exclusive(ROOT / "lock", lambda who: self.place.say(f"jobpython: waiting for {who}, which makes it")):
            if not complete.exists():
                for outdated in (*filter(_unused, ROOT.glob("python*")), directory):
                    shutil.rmtree(outdated, ignore_errors=True)
                self._make(directory)
                complete.touch()
        return python

    def _make(self, directory: Path) -> None:
        began = time.monotonic()
        index = os.environ.get("TORCH_INDEX_URL", "")
        amount = (
            "CPU wheels from TORCH_INDEX_URL, about 0.2 GB"
            if index
            else "with its CUDA libraries, 2.7 GB to fetch unless pip has them cached, 5 GB on disk, 1 to 5 min; "
            "an index of CPU wheels in TORCH_INDEX_URL makes it 0.2 GB"
        )
        self.place.say(f"jobpython: installing {TORCH} in {directory} ({amount})")
        self._run([str(SYSTEM_PYTHON), "-m", "venv", str(directory)], "the virtual environment could not be made")
        pip = [str(directory / "bin" / "python"), "-m", "pip", "install", "--progress-bar", "off", "--no-input"]
        pip += ["-c", str(CONSTRAINTS)]
        if index:
            self._run([*pip, "--index-url", index, TORCH], f"pip could not install {TORCH} from TORCH_INDEX_URL")
        self._run([*pip, TORCH, *OTHERS], f"pip could not install {TORCH}: is the package index reachable?")
        self.place.say(f"jobpython: installed in {time.monotonic() - began:.0f} s")

    def _run(self, argv: list[str], failure: str) -> None:
        """Run a step of the installation into the log, telling of each big file that it fetches."""
        with self.log.open("a") as out, self.log.open() as lines:
            out.write(f"\n$ {' '.join(argv)}\n")
            out.flush()
            lines.seek(0, os.SEEK_END)
            # umask: under a private one of root's, the job user could not read what is installed
            with subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, umask=0o022, cwd="/"
            ) as running:
                while running.poll() is None:
                    if self.place.processes.closed:
                        running.kill()
                        raise StartFailed("jobpython", "the installation was interrupted")
                    for line in lines:
                        if big := _big_wheel(line):
                            self.place.say(f"jobpython: fetching {big}")
                    time.sleep(0.2)
        if running.returncode != 0:
            raise StartFailed("jobpython", f"{failure} (exit status {running.returncode})", self.log)

    def _prove(self, python: Path) -> None:
        """Let the job user multiply matrices with it; once for each interpreter, as importing torch takes seconds."""
        user = users.ensure(self.place)[0]
        marker = self.place.state / "jobpython-proven"
        wanted = f"{python} {python.resolve()} {user.name} {user.uid} {_stamp(python)}"
        if marker.exists() and marker.read_text() == wanted:
            return
        self.place.say(f"jobpython: proving that {user.name} can run torch with {python}")
        done = subprocess.run(
            ["setpriv", f"--reuid={user.uid}", f"--regid={user.gid}", "--init-groups", str(python), "-c", PROOF],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            cwd=user.home,
            env={"HOME": str(user.home), "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
            check=False,
        )
        if done.returncode != 0:
            said = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
            raise StartFailed(
                "jobpython",
                f"{user.name} cannot run torch and numpy with {python}: {said}\n"
                "It must be readable by every user (not below /root) and have torch and numpy.",
            )
        self.place.say(f"jobpython: {user.name} has Python {done.stdout.strip()}")
        marker.write_text(wanted)


def _given() -> Path | None:
    given = os.environ.get("SPEEDRUN_JOB_PYTHON")
    if not given:
        return None
    if not os.access(given, os.X_OK):
        raise StartFailed("jobpython", f"SPEEDRUN_JOB_PYTHON={given} is not a program: name an interpreter with torch")
    return Path(given).absolute()


def _system() -> Path | None:
    """The system's interpreter if it has torch, seen without importing it."""
    look = "import importlib.util as u, sys; sys.exit(0 if all(map(u.find_spec, ('torch', 'numpy', 'pytest'))) else 1)"
    done = subprocess.run([str(SYSTEM_PYTHON), "-I", "-c", look], stdin=subprocess.DEVNULL, check=False)
    return SYSTEM_PYTHON if done.returncode == 0 else None


def _unused(directory: Path) -> bool:
    """Whether no bed has used a finished environment for long: beds of several checkouts may each have their own."""
    try:
        return time.time() - (directory / "complete").stat().st_mtime > UNUSED_SECONDS
    except OSError:
        return True


def _key() -> str:
    """Name of the environment's directory: the interpreter's version and a digest of what goes in."""
    asked = [str(SYSTEM_PYTHON), "-I", "-c", "import platform; print(platform.python_version())"]
    version = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    index = os.environ.get("TORCH_INDEX_URL", "")
    pins = [line for line in CONSTRAINTS.read_text().splitlines() if line.partition("==")[0] in (TORCH, *OTHERS)]
    digest = hashlib.sha256(" ".join((version, *pins, index)).encode()).hexdigest()[:8]
    return f"python{version}-{digest}"


def _stamp(python: Path) -> int:
    try:
        return python.stat().st_mtime_ns
    except OSError:
        return 0


def _big_wheel(line: str) -> str | None:
    """`torch-2.11.0-….whl (530.6 MB)` if the line tells of a download that takes a while."""
    words = line.split()
    if len(words) != 4 or words[0] != "Downloading" or words[3] != "MB)":
        return None
    return f"{words[1].split('-')[0]} {words[2].strip('(')} MB" if float(words[2].strip("(")) >= BIG_WHEEL_MB else None
