"""What the benches share: many Speedruns at once, and what a process has used."""

from __future__ import annotations

import http.client
import json
import os
import ssl
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from testbed.kubernetes import Kubernetes

SPEEDRUNS = "/apis/speedrun.dev/v1alpha1/namespaces/default/speedruns"


def replay(name: str, spec: Mapping[str, Any] | None = None, **parameters: int | str) -> dict[str, Any]:
    """A Speedrun that trains nothing."""
    return {
        "apiVersion": "speedrun.dev/v1alpha1",
        "kind": "Speedrun",
        "metadata": {"name": name},
        "spec": {"recipe": {"name": "replay", "parameters": parameters}, **(spec or {})},
    }


def create(api: Kubernetes, bodies: Iterable[Mapping[str, Any]], namespace: str = "default") -> None:
    """Create Speedruns one after another over one connection. Raises RuntimeError."""
    path = SPEEDRUNS.replace("/default/", f"/{namespace}/")
    context = ssl.create_default_context(cafile=api.pki / "ca.crt")
    context.load_cert_chain(api.pki / "admin.crt", api.pki / "admin.key")
    host, _, port = api.url("kube-apiserver").removeprefix("https://").rpartition(":")
    connection = http.client.HTTPSConnection(host, int(port), timeout=30, context=context)
    try:
        for body in bodies:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
            if answer.status != 201:
                raise RuntimeError(f"{answer.status}: {text.decode(errors='replace')}")
    finally:
        connection.close()


def speedruns(api: Kubernetes) -> list[dict[str, Any]]:
    """All Speedruns as the API server shows them."""
    items: list[dict[str, Any]] = json.loads(api.call("GET", SPEEDRUNS, timeout=60))["items"]
    return items


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
