"""The chart's alerts and dashboard, and what they ask."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

FILES = Path(__file__).parents[3] / "charts" / "speedrun-operator" / "files"
ALERTS = (FILES / "alerts.yaml").read_text(encoding="utf-8")
RULES: list[dict[str, Any]] = [rule for group in yaml.safe_load(ALERTS)["groups"] for rule in group["rules"]]
DASHBOARD: dict[str, Any] = json.loads((FILES / "dashboard.json").read_text(encoding="utf-8"))


def panels() -> Iterator[dict[str, Any]]:
    """Those that show something."""
    yield from (each for each in DASHBOARD["panels"] if each["type"] != "row")


def queries() -> list[str]:
    """What the dashboard asks."""
    return [target["expr"] for panel in panels() for target in panel["targets"]]


def filled(query: str) -> str:
    """A query of the dashboard as Grafana sends it, with everything chosen."""
    return query.replace("$__rate_interval", "1m").replace("$namespace", ".*").replace("$name", ".*")
