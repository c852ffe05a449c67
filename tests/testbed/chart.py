"""What of the chart is made from something else: `python -m testbed.chart` writes it, and tests hold it to be so.

- crd/speedruns.yaml is the CRD.
- values.schema.json: chart_schema.py.
- README.md has a table of the values, with the comments and defaults of values.yaml.
- tests/testbed/rbac.yaml, the operator's rights in the bed, is what the chart renders for a whole cluster.
"""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

from speedrun_operator.api.schema import crd_yaml
from testbed.chart_schema import schema
from testbed.helm import CHART, Helm, of_kind
from testbed.operator import RBAC
from testbed.part import Place

TABLE = re.compile(r"(<!-- values -->\n).*(<!-- end of values -->)", re.DOTALL)
RBAC_KINDS = ("Namespace", "ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
BED = {
    "image": {"repository": "speedrun-operator"},
    "rbac": {"clusterWide": True, "nodes": True},
    "pods": {"enabled": True},
}


def documented(text: str) -> dict[str, str]:
    """The comment of each value in values.yaml, by its dotted name, in its order."""
    found: dict[str, str] = {}
    path: list[tuple[int, str]] = []
    comment = ""
    for line in text.splitlines():
        if said := re.match(r" *# -- (.*)", line):
            comment = said[1]
        elif key := re.match(r"( *)([A-Za-z]+):", line):
            path = [each for each in path if each[0] < len(key[1])] + [(len(key[1]), key[2])]
            if comment:
                found[".".join(name for _, name in path)] = comment
            comment = ""
    return found


def table(text: str) -> str:
    """The values as a table in Markdown."""
    values = yaml.safe_load(text)
    rows = ["| value | default | what it is |", "| --- | --- | --- |"]
    for name, comment in documented(text).items():
        default: Any = values
        for part in name.split("."):
            default = default[part]
        shown = json.dumps(default, ensure_ascii=False)
        rows.append(f"| `{name}` | `{shown}` | {comment} |")
    return "\n".join(rows) + "\n"


# The files --------------------------------------------------------------------------------------------------------


def rights(helm: Helm) -> str:
    """tests/testbed/rbac.yaml."""
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "speedrun-system"}}
    rendered = of_kind(helm.template(BED), *RBAC_KINDS)
    head = "# What the operator may do in the bed: the rights that the chart gives it in a whole cluster, with pods.\n"
    head += "# Made by `python -m testbed.chart`; do not edit.\n"
    return head + yaml.safe_dump_all([namespace, *rendered], sort_keys=False)


def files(helm: Helm) -> dict[Any, str]:
    """Each file that is made, and what it should hold."""
    readme = CHART / "README.md"
    values = table((CHART / "values.yaml").read_text())
    return {
        CHART / "crd" / "speedruns.yaml": crd_yaml(),
        CHART / "values.schema.json": json.dumps(schema(), indent=2, ensure_ascii=False) + "\n",
        readme: TABLE.sub(lambda found: found[1] + values + found[2], readme.read_text()),
        RBAC: rights(helm),
    }


def main() -> None:
    (CHART / "values.schema.json").unlink(missing_ok=True)
    for path, text in files(Helm(Place(say=print))).items():
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
