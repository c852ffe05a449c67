"""Writes docs/reference.md: every field of a Speedrun, every setting and every recipe, from the models.

python scripts/reference.py >docs/reference.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from speedrun_operator.api.names import FINALIZER, FINISHED_LABEL, GROUP, KIND, VERSION
from speedrun_operator.api.phases import ConditionType, Phase
from speedrun_operator.api.schema import custom_resource_definition
from speedrun_operator.recipes.recipe import Recipe, shipped
from speedrun_operator.settings import PREFIX, Settings

Schema = Mapping[str, Any]

HEAD = f"""\
# Reference

Made from the models by `python scripts/reference.py`; do not edit. The API is `{GROUP}/{VERSION}`, kind `{KIND}`, namespaced.
`kubectl explain speedrun.spec` says the same of the cluster's own version.

- Phases: {", ".join(f"`{phase}`" for phase in Phase)}.
- Conditions: {", ".join(f"`{each}`" for each in ConditionType)}.
- Finalizer: `{FINALIZER}`, until the jobs of a deleted Speedrun are gone. Label: `{FINISHED_LABEL}=true` once it is finished.
"""


def main() -> int:
    sys.stdout.write(text())
    return 0


def text() -> str:
    """The whole document."""
    root = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    parts = [HEAD, "## spec\n", *_table(root["spec"], "spec"), "\n## status\n", *_table(root["status"], "status")]
    parts += ["\n## Settings\n", *_settings(), "\n## Recipes\n", *map(_recipe, shipped().values())]
    return "\n".join(parts)


def _table(schema: Schema, path: str) -> Iterator[str]:
    yield "| field | type | default | what it is |\n| --- | --- | --- | --- |"
    for name, kind, default, about in _fields(schema, path):
        yield f"| `{name}` | {kind} | {default} | {_cell(about)} |"


def _fields(schema: Schema, path: str) -> Iterator[tuple[str, str, str, str]]:
    """Name, type, default and description of each field below, depth first."""
    required = schema.get("required", ())
    for name, each in schema.get("properties", {}).items():
        default = "required" if name in required else _value(each["default"]) if "default" in each else ""
        yield f"{path.partition('.')[2]}.{name}".lstrip("."), _kind(each), default, each.get("description", "")
        below = each["items"] if each["type"] == "array" else each
        yield from _fields(below, f"{path}.{name}" + ("[]" if each["type"] == "array" else ""))


def _kind(schema: Schema) -> str:
    """A type with its bounds: `integer, 1 to 64`."""
    if schema.get("x-kubernetes-int-or-string"):
        return "integer or string"
    if "enum" in schema:
        return " or ".join(f"`{each}`" if each else "empty" for each in schema["enum"])
    if schema["type"] == "array":
        return f"list of {_kind(schema['items'])}" if "type" in schema["items"] else "list"
    if isinstance(values := schema.get("additionalProperties"), Mapping):
        return f"map to {_kind(values)}"
    kind = str(schema.get("format") or schema["type"])
    least, most = (None if (bound := schema.get(each)) is None else f"{bound:.15g}" for each in ("minimum", "maximum"))
    if schema.get("exclusiveMinimum"):
        return f"{kind}, over {least}" + (f", at most {most}" if most is not None else "")
    bounds = {
        (True, True): f", {least} to {most}",
        (True, False): f", at least {least}",
        (False, True): f", at most {most}",
    }
    return kind + bounds.get((least is not None, most is not None), "")


def _settings() -> Iterator[str]:
    yield (
        f"Each is a flag, a variable of the environment ({PREFIX}…, a group and its setting with two underscores between), "
        "and a key of the file that `--config` names; a flag wins over the environment, and that over the file.\n"
    )
    yield "| setting | variable | default | what it is |\n| --- | --- | --- | --- |"
    for path, default, about in _leaves(Settings, ()):
        variable = PREFIX + "__".join(path).upper()
        yield f"| `{'.'.join(path)}` | `{variable}` | {default} | {_cell(about)} |"


def _leaves(model: type[BaseModel], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str, str]]:
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _leaves(kind, (*path, name))
            continue
        default = field.get_default(call_default_factory=True)
        shown = "required" if default is PydanticUndefined else "" if default is None else _value(default)
        yield (*path, name), shown, field.description or ""


def _recipe(recipe: Recipe) -> str:
    rows = "".join(
        f"| `{name}` | {each.type} | {_value(each.default)} | {_cell(each.description)} |\n"
        for name, each in recipe.parameters.items()
    )
    table = f"\n| parameter | type | default | what it is |\n| --- | --- | --- | --- |\n{rows}" if rows else ""
    gpus = f"{' or '.join(recipe.gpus.types) or 'any type'} ({' or '.join(map(str, recipe.gpus.counts))})"
    where = "no GPU" if max(recipe.gpus.counts) == 0 else f"GPUs of {gpus}"
    return f"### {recipe.name}\n\n{recipe.about.strip()} Runs on {where}; target {recipe.target}.\n{table}"


def _value(value: object) -> str:
    if value in ("", [], {}):
        return "empty"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{','.join(map(str, value))}`" if isinstance(value, list) else f"`{value}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
