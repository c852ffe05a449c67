"""Each case of the public bug reports, in the areas that are done, has a test whose docstring names it."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
CASES = TESTS.parents[1] / "shared" / "data" / "cases.jsonl"
DONE = {"ssh", "slurm", "kopf", "pyxis", "trainer", "data", "k8s", "kubeconfig", "security", "helm"}
CASE = re.compile(r"\bBR-\d{3}\b")


def named_by_tests() -> set[str]:
    """The cases that a test's docstring names."""
    names: set[str] = set()
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                names.update(CASE.findall(ast.get_docstring(node) or ""))
    return names


@pytest.mark.skipif(not CASES.is_file(), reason="the cases are not beside this checkout")
def test_every_case_of_the_areas_that_are_done_has_its_test() -> None:
    cases = [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines() if line.strip()]
    wanted = {case["id"] for case in cases if case["area"] in DONE}
    assert wanted, "no case was read"
    assert sorted(wanted - named_by_tests()) == []
