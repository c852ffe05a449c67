"""`speedrun-operator clusters` and `kubeconfig`: what the Platform API has, for people."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import yaml

from speedrun_operator.api.cluster import ClusterState
from speedrun_operator.check_platform import word
from speedrun_operator.credentials import kubeconfig
from speedrun_operator.credentials.faults import AccessError
from speedrun_operator.credentials.private import write_private
from speedrun_operator.lifecycle.readiness import awaited
from speedrun_operator.outside import platform_api
from speedrun_operator.platform.bodies import Cluster
from speedrun_operator.platform.client import PlatformApi
from speedrun_operator.platform.errors import PlatformError
from speedrun_operator.platform.readiness import ask
from speedrun_operator.platform.settings import PlatformSettings

HEADER = ("ID", "NAME", "STATE", "SCHEDULER", "SLURM", "STORAGE", "SSH", "WAITS FOR")


async def clusters(settings: PlatformSettings) -> int:
    """Print the organization's clusters, one a line, with their readiness; the exit code."""
    api: PlatformApi | None = None
    try:
        api = platform_api(settings)
        found = await api.clusters()
        rows = await asyncio.gather(*(_asked(api, each) for each in found))
    except (AccessError, PlatformError) as error:
        print(f"speedrun-operator: {error}", file=sys.stderr)
        return 1
    finally:
        if api is not None:
            await api.close()
    if not rows:
        print(f"speedrun-operator: the organization {settings.organization} shows no clusters", file=sys.stderr)
        return 0
    table = [HEADER, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(HEADER))]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0


async def _asked(api: PlatformApi, found: Cluster) -> tuple[str, ...]:
    """The cluster's row. One that cannot be asked about does not hide the others."""
    try:
        return _row(await ask(api, found.id, found))
    except PlatformError as error:
        print(f"speedrun-operator: {found.id}: {error}", file=sys.stderr)
        return _row(ClusterState(found.id, found.spec.name, found.lifecycle, found.status.lifecycle_state))


def _row(facts: ClusterState) -> tuple[str, ...]:
    missing = awaited(facts)
    return (
        facts.cluster,
        facts.name or "-",
        facts.state or "unknown",
        facts.scheduler or "unknown",
        word(facts.slurm),
        f"{'+'.join(facts.storage) or '-'} {word(facts.storage_ready)}",
        word(facts.ssh),
        missing.reason if missing else "-",
    )


async def write_kubeconfig(settings: PlatformSettings, output: str, merge: bool) -> int:
    """Write the cluster's kubeconfig to a file of its own, or into the user's; the exit code."""
    api: PlatformApi | None = None
    try:
        api = platform_api(settings)
        text = await api.kubeconfig(settings.cluster)
        chosen = kubeconfig.select(kubeconfig.parse(text, "the fetched kubeconfig", None), None)
        path = _path(output, settings.cluster, merge)
        name = f"andromeda-{settings.cluster}"
        document = _merged(path, chosen, name) if merge else _alone(chosen, name)
        write_private(path, yaml.safe_dump(document, sort_keys=False))
    except (AccessError, PlatformError) as error:
        print(f"speedrun-operator: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"speedrun-operator: {error}", file=sys.stderr)
        return 1
    finally:
        if api is not None:
            await api.close()
    print(f"written: {path} (context {name}); it lets whoever reads it into the cluster")
    print(f"use it:  kubectl --kubeconfig {path} --context {name} get speedruns -A")
    return 0


def _path(output: str, cluster: str, merge: bool) -> Path:
    """The file to write: what is named, a new one, or the one that kubectl writes to."""
    if output or not merge:
        return Path(output or f"kubeconfig-{cluster}").expanduser()
    named = [each for each in os.environ.get("KUBECONFIG", "").split(os.pathsep) if each]
    return Path(named[0]) if named else Path.home() / ".kube" / "config"


def _alone(chosen: kubeconfig.Selected, name: str) -> dict[str, Any]:
    empty: dict[str, Any] = {"apiVersion": "v1", "kind": "Config", "preferences": {}}
    return _with(empty, chosen, name) | {"current-context": name}


def _merged(path: Path, chosen: kubeconfig.Selected, name: str) -> dict[str, Any]:
    """The user's file with the cluster in it. Their current context stays theirs; a broken file is left alone."""
    if not path.exists():
        return _alone(chosen, name)
    text = kubeconfig.read(path, "kubeconfig")
    if text.strip():
        kubeconfig.parse(text, str(path), path.parent)
    document: dict[str, Any] = yaml.safe_load(text) or {}
    merged = _with(document, chosen, name)
    return merged if merged.get("current-context") else merged | {"current-context": name}


def _with(document: dict[str, Any], chosen: kubeconfig.Selected, name: str) -> dict[str, Any]:
    user = dict(chosen.user.content) if chosen.user else {}
    context: dict[str, Any] = {"cluster": name, "user": name}
    added = {
        "clusters": {"name": name, "cluster": dict(chosen.cluster.content)},
        "users": {"name": name, "user": user},
        "contexts": {"name": name, "context": context},
    }
    merged = dict(document)
    for plural, entry in added.items():
        others = [each for each in document.get(plural) or [] if each.get("name") != name]
        merged[plural] = [*others, entry]
    return merged
