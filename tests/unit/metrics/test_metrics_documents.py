"""docs/operations.md says what there is: every metric and every alert, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from speedrun_operator.metrics.table import TABLE

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[str]:
    """The rows of the table with this heading."""
    _, _, after = TEXT.partition(f"{heading}\n")
    _, *lines = after.splitlines()
    return lines[: next(number for number, line in enumerate(lines) if not line.startswith("|"))]


def test_every_metric_is_described_as_the_code_does() -> None:
    assert rows("| metric | type | labels | meaning |") == [
        f"| `{each.name}` | {each.kind} | {', '.join(each.labels)} | {each.help} |" for each in TABLE
    ]


def test_every_alert_is_listed() -> None:
    groups = yaml.safe_load((ROOT / "charts" / "speedrun-operator" / "files" / "alerts.yaml").read_text())["groups"]
    known = [
        (rule["alert"], rule["labels"]["severity"], rule.get("for", "at once"))
        for group in groups
        for rule in group["rules"]
    ]
    cells = [re.split(r"\s*\|\s*", row.strip("| ")) for row in rows("| alert | severity | after | when |")]
    assert [(name.strip("`"), severity, after) for name, severity, after, _ in cells] == known


def test_names_in_the_text_are_served() -> None:
    known = {each.name for each in TABLE}
    named = set(re.findall(r"\bspeedrun_[a-z_]+", TEXT)) - {"speedrun_operator"}
    assert named <= known
