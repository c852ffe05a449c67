"""A container image made on the spot of files that Debian's packages put on this machine: no registry is asked.

One layer with a shell, Python, git and tar, and one with what makes a virtual environment; of these an image for the
containers, one that lacks the second, and one that a pod's sandbox sleeps in. None has torch: that comes through the
cache volume. Kept in the cache, named by the packages' versions.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import stat
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

from testbed.locks import exclusive
from testbed.part import Place

IMAGE = "speedrun.test/run:1"
BARE = "speedrun.test/bare:1"  # has no venv
PAUSE = "speedrun.test/pause:1"
WANTED = (
    "bash",
    "coreutils",
    "dash",
    "findutils",
    "git",
    "grep",
    "gzip",
    "hostname",
    "libstdc++6",
    "python3",
    "sed",
    "tar",
)
WITH_VENV = ("python3-venv",)  # and the wheels of pip and setuptools: 4 MB
LEFT_OUT = frozenset({
    "ca-certificates",  # pip needs them only where it has a way out
    "debconf",
    "debconf-2.0",
    "dpkg",
    "git-man",
    "liberror-perl",
    "mailcap",
    "media-types",
    "perl",
    "perl-base",
})  # fmt: skip
NOT_NEEDED = re.compile(r"/usr/share/(doc|man|locale|info|lintian|bug|doc-base)(/|$)|.*/__pycache__(/|$)")
FOLDERS = {"tmp": 0o1777, "home": 0o755, "root": 0o700, "proc": 0o555, "etc": 0o755}
LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}
FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/bash\nspeedrun:x:1000:1000::/home/speedrun:/bin/bash\n",
    "etc/group": "root:x:0:\nspeedrun:x:1000:\n",
}
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def archive(place: Place) -> Path:
    """The OCI archive with the images, made where the cache has none for the installed versions."""
    packages = closure((*WANTED, *WITH_VENV))
    key = hashlib.sha256(json.dumps([sorted(packages.items()), Path(__file__).read_text()]).encode()).hexdigest()[:16]
    target = place.cache / "images" / f"run-{key}.tar"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(target.parent / "lock", lambda who: place.say(f"image: waiting for {who}, which makes it")):
        if not target.exists():
            part = target.with_suffix(".part")
            _write(part)
            part.replace(target)
    return target


def closure(names: tuple[str, ...]) -> dict[str, str]:
    """The installed packages that `names` need, with their versions."""
    asked = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Package}\t${Version}\t${Provides}\t${Pre-Depends},${Depends}\n"],
        capture_output=True,
        text=True,
        check=True,
    )
    versions: dict[str, str] = {}
    needs: dict[str, list[str]] = {}
    for line in asked.stdout.splitlines():
        name, version, provides, depends = line.split("\t")
        for each in (name, *_names(provides)):
            versions.setdefault(each, version)
            needs.setdefault(each, _names(depends))
    found: dict[str, str] = {}
    todo = list(names)
    while todo:
        name = todo.pop()
        if name in found or name in LEFT_OUT or name not in versions:
            continue
        found[name] = versions[name]
        todo += needs[name]
    return found


def _names(text: str) -> list[str]:
    return [found[1] for each in re.split(r"[,|]", text) if (found := re.match(r"\s*([a-z0-9][a-z0-9+.-]*)", each))]


def _files(packages: list[str]) -> Iterator[Path]:
    for name in packages:
        listed = subprocess.run(["dpkg-query", "-L", name], capture_output=True, text=True, check=False).stdout
        yield from (Path(line) for line in listed.splitlines() if line.startswith("/") and not NOT_NEEDED.match(line))


def _layer(packages: list[str], *, first: bool = False) -> bytes:
    """A tar of the packages' files; the first layer has Debian 12's links for /bin and the like, too."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as layer:
        if first:
            _add_root(layer)
        seen = {f"/{name}" for name in (*LINKS, *FILES, *FOLDERS)}
        for path in _files(packages):
            real = Path(os.path.realpath(path.parent)) / path.name  # what dpkg knows as /bin/bash is /usr/bin/bash
            if str(real) in seen or not os.path.lexists(real):
                continue
            seen.add(str(real))
            mode = real.lstat().st_mode
            if stat.S_ISREG(mode) or stat.S_ISLNK(mode) or stat.S_ISDIR(mode):
                layer.add(real, arcname=str(real).lstrip("/"), recursive=False)
    return plain.getvalue()


def _add_root(layer: tarfile.TarFile) -> None:
    for name, target in LINKS.items():
        link = tarfile.TarInfo(name)
        link.type, link.linkname = tarfile.SYMTYPE, target
        layer.addfile(link)
    for name, mode in FOLDERS.items():
        folder = tarfile.TarInfo(name)
        folder.type, folder.mode = tarfile.DIRTYPE, mode
        layer.addfile(folder)
    for name, text in FILES.items():
        file = tarfile.TarInfo(name)
        file.size, file.mode = len(text), 0o644
        layer.addfile(file, io.BytesIO(text.encode()))


def _write(target: Path) -> None:
    blobs: dict[str, bytes] = {}

    def blob(data: bytes) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = data
        return {"digest": f"sha256:{digest}", "size": len(data)}

    def layer(data: bytes) -> dict[str, object]:
        return {"mediaType": "application/vnd.oci.image.layer.v1.tar", **blob(data)}

    common = closure(WANTED)
    base = layer(_layer(sorted(common), first=True))
    venv = layer(_layer(sorted(closure((*WANTED, *WITH_VENV)).keys() - common.keys())))
    manifests = []
    for name, command, layers in (
        (IMAGE, ["/bin/bash"], [base, venv]),
        (BARE, ["/bin/bash"], [base]),
        (PAUSE, ["/bin/sleep", "infinity"], [base]),
    ):
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": command, "Env": ["PATH=/usr/bin:/bin", "LANG=C.UTF-8"], "WorkingDir": "/"},
            "rootfs": {"type": "layers", "diff_ids": [each["digest"] for each in layers]},
        }
        described = {"mediaType": "application/vnd.oci.image.config.v1+json", **blob(json.dumps(config).encode())}
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": described, "layers": layers}
        manifests.append({
            "mediaType": MANIFEST,
            **blob(json.dumps(manifest).encode()),
            "annotations": {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.split(":")[1]},
        })  # fmt: skip
    index = {"schemaVersion": 2, "manifests": manifests}
    files = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', "index.json": json.dumps(index).encode(), **blobs}
    with tarfile.open(target, "w") as out:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            out.addfile(entry, io.BytesIO(data))
