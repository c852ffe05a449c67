"""A CRD that is not this version's."""

from __future__ import annotations

import json

import yaml

from testbed.operator import CRD


def stale_crd() -> str:
    """This version's CRD without a field, as an older version's would be; no rule names that field."""
    crd = yaml.safe_load(CRD.read_text())
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    del schema["properties"]["spec"]["properties"]["ttlSecondsAfterFinished"]
    return json.dumps(crd)
