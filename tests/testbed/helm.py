"""helm with the project's chart: what it renders, and releases of it in the bed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from testbed.part import Place
from testbed.tools import Toolbox

CHART = Path(__file__).parents[2] / "charts" / "speedrun-operator"
NAMESPACE = "speedrun-system"
RELEASE = "speedrun"
Object = dict[str, Any]
# libyaml reads the CRD in a tenth of the time.
Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class HelmFailed(Exception):
    """helm ended with another status than 0; the message is what it printed on its standard error."""


class Helm:
    """`helm("list")` gives what it prints. Without a kubeconfig it renders and lints, and reaches no cluster."""

    def __init__(self, place: Place, kubeconfig: Path | None = None) -> None:
        self.binary = Toolbox(place).ensure(("helm",))["helm"]
        self._kubeconfig = kubeconfig or Path("/nonexistent")
        self._home = place.state / "helm"

    def __call__(self, *arguments: str, stdin: str | None = None, timeout: float = 120) -> str:
        """Run it and give its standard output. Raises HelmFailed, TimeoutExpired after `timeout` seconds."""
        home = {
            name: str(self._home / name.lower()) for name in ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME")
        }
        argv = [str(self.binary), *arguments, "--kubeconfig", str(self._kubeconfig)]
        done = subprocess.run(
            argv,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **home},
        )
        if done.returncode != 0:
            raise HelmFailed(f"helm {' '.join(arguments)}: exit status {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def template(
        self,
        values: Mapping[str, Any],
        *flags: str,
        chart: Path = CHART,
        name: str = RELEASE,
        namespace: str = NAMESPACE,
    ) -> list[Object]:
        """The objects that the chart renders with these values, without the CRD unless `--set crds.install=true`."""
        quick = () if any("crds." in flag for flag in flags) or "crds" in values else ("--set", "crds.install=false")
        text = self("template", name, str(chart), "-n", namespace, "-f", "-", *quick, *flags, stdin=json.dumps(values))
        return [each for each in yaml.load_all(text, Loader=Loader) if each]

    def install(self, values: Mapping[str, Any], *flags: str, namespace: str, chart: Path = CHART) -> str:
        """Install or upgrade RELEASE; what it prints."""
        return self(
            "upgrade", "--install", RELEASE, str(chart), "-n", namespace, "--create-namespace", "-f", "-", *flags,
            stdin=json.dumps(values),
        )  # fmt: skip


def of_kind(objects: Iterable[Object], *kinds: str) -> list[Object]:
    return [each for each in objects if each["kind"] in kinds]
