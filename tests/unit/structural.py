"""What the API server checks of an object by its structural schema, as far as our CRD uses it.

The real server judges the same schema in tests/cluster; here thousands of made objects are held to it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

INT64 = 2**63
KINDS: Mapping[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
}


def faults(schema: Mapping[str, Any], value: Any, path: str = "") -> Iterator[str]:
    """What the schema does not allow, each with its path."""
    if schema.get("x-kubernetes-int-or-string"):
        if not isinstance(value, int | str) or isinstance(value, bool):
            yield f"{path}: is neither a whole number nor text"
    elif not isinstance(value, KINDS[schema["type"]]) or (isinstance(value, bool) and schema["type"] != "boolean"):
        yield f"{path}: {value!r} is no {schema['type']}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{path}: {value!r} is none of {schema['enum']}"
    if isinstance(value, dict):
        yield from _object(schema, value, path)
    elif isinstance(value, list):
        if len(value) > schema["maxItems"]:
            yield f"{path}: {len(value)} items"
        for number, each in enumerate(value):
            yield from faults(schema["items"], each, f"{path}[{number}]")
    elif isinstance(value, str):
        yield from _text(schema, value, path)
    elif not isinstance(value, bool):
        yield from _number(schema, value, path)


def _object(schema: Mapping[str, Any], value: Mapping[str, Any], path: str) -> Iterator[str]:
    known, rest = schema.get("properties", {}), schema.get("additionalProperties")
    yield from (f"{path}.{name}: is required" for name in schema.get("required", ()) if name not in value)
    if len(value) > schema.get("maxProperties", len(value)):
        yield f"{path}: {len(value)} keys"
    for name, each in value.items():
        if name not in known and rest is None:
            yield f"{path}.{name}: is unknown"
        else:
            yield from faults(known.get(name, rest), each, f"{path}.{name}")


def _text(schema: Mapping[str, Any], value: str, path: str) -> Iterator[str]:
    if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
        yield f"{path}: {len(value)} characters"
    if "pattern" in schema and not re.search(schema["pattern"].replace("$", r"\Z"), value):
        yield f"{path}: {value!r} does not match {schema['pattern']}"


def _number(schema: Mapping[str, Any], value: float, path: str) -> Iterator[str]:
    if not math.isfinite(value):
        yield f"{path}: {value} is no number of JSON"
    if schema.get("type") == "integer" and not -INT64 <= value < INT64:
        yield f"{path}: {value} does not fit into 64 bits"
    if value < schema.get("minimum", value) or value > schema.get("maximum", value):
        yield f"{path}: {value} is out of bounds"
