"""Images built from the project's Dockerfile with buildah, on this machine and on stand-in bases (standin.py).

Root and a kernel with namespaces are enough: buildah's chroot isolation needs no engine and no registry. An image is
named by all that goes into it and kept in the cache as an archive: an unchanged tree builds nothing, and of a changed
one the layers that did not change are kept.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from testbed import standin
from testbed.locks import Users, exclusive
from testbed.part import Place
from testbed.processes import StartFailed

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "Dockerfile"
RUN = Path("/run/speedrun-testbed/containers")
UNUSED_SECONDS = 86_400  # then an image's archive is removed
# Where a build finds the machine's own pip cache, so that nothing is fetched twice.
PIP_CACHE = "/var/cache/pip"
CA = "/run/secrets/ca"  # of the secret `ca`, which the Dockerfile mounts


@dataclass(frozen=True)
class Target:
    """A target of the Dockerfile: the argument that names its base, and the files of the project that it copies."""

    base: str
    copies: tuple[str, ...]
    arguments: Mapping[str, str] = field(default_factory=dict)


TARGETS = {
    "operator": Target(
        "OPERATOR_BASE", ("LICENSE", "README.md", "constraints.txt", "operator", "pyproject.toml", "trainer")
    ),
    # CUDA is left out, and torch comes from where the jobs' Python has it.
    "trainer": Target(
        "TRAINER_BASE",
        ("constraints.txt", "pyproject.toml", "trainer/speedrun_trainer"),
        {"CUDA": "0", "TORCH_INDEX_URL": os.environ.get("TORCH_INDEX_URL", "")},
    ),
}


class Builder:
    """Builds the targets of the Dockerfile for one bed; what it builds is every bed's."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.directory = place.cache / "containers"

    def name(self, target: str) -> str:
        """The image's name as the working tree has it now."""
        wanted = TARGETS[target]
        digest = hashlib.sha256(json.dumps([target, standin.key(), dict(wanted.arguments)]).encode())
        for path in (DOCKERFILE, ROOT / ".dockerignore", *_files(wanted.copies)):
            digest.update(f"\n{path.relative_to(ROOT)} {path.stat().st_mode & 0o111}\n".encode())
            digest.update(path.read_bytes())
        return f"speedrun.test/{target}:{digest.hexdigest()[:16]}"

    def archive(self, target: str) -> Path:
        """The image in a file as `docker save` writes it, built where the cache has none. Raises StartFailed."""
        name = self.name(target)
        file = self.place.cache / "images" / f"{target}-{name.rpartition(':')[2]}.tar"
        with self._alone(target):
            if not file.exists():
                self._build(target, name)
                part = file.with_name(f"unfinished-{file.name}")
                part.unlink(missing_ok=True)  # buildah adds to no archive
                self._buildah("push", name, f"docker-archive:{part}:{name}")
                part.replace(file)
                for old in file.parent.glob(f"{target}-*.tar"):
                    if time.time() - old.stat().st_mtime > UNUSED_SECONDS:
                        old.unlink()
            os.utime(file)
        return file

    def run(self, target: str, *command: str, user: str) -> subprocess.CompletedProcess[str]:
        """Run a command in a container of the image, built where need be, as `user`. Raises StartFailed."""
        name = self.name(target)
        with self._alone(target):
            if not self._has(name):
                self._build(target, name)
            with self._in_use():
                container = self._buildah("from", "--pull-never", name).strip()
                argv = [*self._argv(), "run", "--isolation=chroot", f"--user={user}", container, "--", *command]
                try:
                    return subprocess.run(argv, env=self._environment(), capture_output=True, text=True, check=False)
                finally:
                    self._buildah("rm", container)

    # ---- how

    def _build(self, target: str, name: str) -> None:
        wanted = TARGETS[target]
        began = time.monotonic()
        self.place.say(f"images: building `{target}` (the first time minutes; then what changed)")
        base = self._base()
        argv = ["build", "--isolation=chroot", "--layers", f"--target={target}", f"--tag={name}", "--pull-never"]
        argv += [f"--build-arg={key}={value}" for key, value in {wanted.base: base, **wanted.arguments}.items()]
        with self._in_use(), tempfile.TemporaryDirectory() as scratch:
            argv += _pip_arguments(Path(scratch) / "pip.conf")
            self._buildah_into(self.place.logs / f"image-{target}.log", *argv, str(ROOT))
        self._forget_others(name)
        self.place.say(f"images: `{target}` is built, in {time.monotonic() - began:.0f} s")

    def _base(self) -> str:
        """The stand-in base, by its digest."""
        file = standin.base(self.place)
        name = f"speedrun.test/base:{file.stem}"
        with self._alone("base"):
            if not self._has(name):
                container = self._buildah("from", "scratch").strip()
                self._buildah("add", "--quiet", container, str(file), "/")
                self._buildah("config", "--cmd", "/bin/bash", container)
                self._buildah("commit", "--quiet", "--rm", container, name)
        digest = self._buildah("images", "--format", "{{.Digest}}", name).strip()
        return f"{name.partition(':')[0]}@{digest}"

    def _has(self, name: str) -> bool:
        asked = [*self._argv(), "inspect", "--type=image", name]
        return subprocess.run(asked, env=self._environment(), capture_output=True, check=False).returncode == 0

    def _forget_others(self, name: str) -> None:
        """Drop the images that older trees built. Layers that this one has, too, stay; so does what is in use."""
        target = name.partition(":")[0]
        for other in self._buildah("images", "--format", "{{.Name}}:{{.Tag}}").split():
            if other.startswith(f"{target}:") and other != name:
                argv = [*self._argv(), "rmi", other]
                subprocess.run(argv, env=self._environment(), capture_output=True, check=False)

    def _alone(self, what: str) -> AbstractContextManager[None]:
        return exclusive(self.directory / f"{what}.lock", lambda who: self.place.say(f"images: waiting for {who}"))

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        """Count as a user of the store. Its only one removes what users left there that were killed."""
        users = Users(self.directory / "users")
        with ExitStack() as claim:
            with self._alone("store"):
                if not users.living():
                    self._buildah("rm", "--all")
                claim.enter_context(users.claim())
            yield

    @cached_property
    def _driver(self) -> str:
        """How buildah keeps layers: as overlays, or, where the kernel allows none there, as whole copies."""
        probe = [*self._argv_with("overlay"), "info"]
        done = subprocess.run(probe, env=self._environment(), capture_output=True, check=False)
        return "overlay" if done.returncode == 0 else "vfs"

    def _argv(self) -> list[str]:
        return self._argv_with(self._driver)

    def _argv_with(self, driver: str) -> list[str]:
        """buildah with a store of its own."""
        return [
            "buildah",
            f"--root={self.directory / driver}",
            f"--runroot={RUN / driver}",
            f"--storage-driver={driver}",
        ]

    def _environment(self) -> dict[str, str]:
        scratch = self.directory / "tmp"
        scratch.mkdir(parents=True, exist_ok=True)
        return {**os.environ, "TMPDIR": str(scratch)}

    def _buildah(self, *arguments: str) -> str:
        argv = [*self._argv(), *arguments]
        done = subprocess.run(argv, env=self._environment(), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise StartFailed("images", f"`buildah {arguments[0]}` failed: {done.stderr.strip()}")
        return done.stdout

    def _buildah_into(self, log: Path, *arguments: str) -> None:
        """The same with its output in a log as it comes: it may take minutes."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as out:
            # Whoever waits for it may be killed: it must not go on by itself.
            argv = ["setpriv", "--pdeathsig=TERM", *self._argv(), *arguments]
            done = subprocess.run(
                argv, env=self._environment(), stdin=subprocess.DEVNULL, stdout=out, stderr=out, check=False
            )
        if done.returncode != 0:
            raise StartFailed("images", f"`buildah {arguments[0]}` failed (exit status {done.returncode})", log)


def _files(names: tuple[str, ...]) -> list[Path]:
    """The files that .dockerignore lets through of what the Dockerfile copies."""
    found = []
    for path in (ROOT / name for name in names):
        each = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
        found += [file for file in each if "__pycache__" not in file.parts and ".egg-info" not in str(file)]
    return sorted(found)


def _pip_arguments(file: Path) -> list[str]:
    """Arguments that let pip in the build reach what this machine's pip reaches. `file` is for pip.conf."""
    settings = pip_settings(_output(sys.executable, "-m", "pip", "config", "list"))
    cache = Path(_output(sys.executable, "-m", "pip", "cache", "dir").strip())
    cache.mkdir(parents=True, exist_ok=True)
    authorities = settings.pop("cert", None)
    lines = [f"{key} = {value}" for key, value in {**settings, "cache-dir": PIP_CACHE}.items()]
    if authorities:
        lines.append(f"cert = {CA}")
    file.touch(mode=0o600)
    file.write_text("\n".join(["[global]", *lines, ""]))
    secrets = [f"--secret=id=pip,src={file}", f"--volume={cache}:{PIP_CACHE}"]
    return [*secrets, f"--secret=id=ca,src={authorities}"] if authorities else secrets


def pip_settings(listed: str) -> dict[str, str]:
    """What `pip config list` says, without the sections' names: the environment wins, as it does for pip.

    Directories of this machine are left out: a build does not see them.
    """
    found: dict[str, str] = {}
    for line in sorted(listed.splitlines(), key=lambda line: line.startswith(":env:.")):
        name, _, value = line.partition("=")
        setting = name.rpartition(".")[2]
        text = " ".join(str(ast.literal_eval(value)).split())
        if setting == "cert" or not text.startswith("/"):
            found[setting] = text
    return found


def _output(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout
