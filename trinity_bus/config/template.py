"""Settings as text: a commented file, a schema for editors, and what services report, without secrets and bounded."""

import inspect
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from textwrap import wrap
from typing import Any, Final

from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from schemas.event import MAX_SETTING_CHARS
from trinity_bus.config.mesh import is_of_mesh
from trinity_bus.config.sections import Sections, is_secret, sections, setting_fields
from trinity_bus.config.values import Section
from trinity_bus.errors import ConfigError

# the schema, rendered; editors that know TOML find it by the first line of a file, ``#:schema``
SCHEMA: Final = Path(__file__).with_name("mesh.schema.json")
_WIDTH: Final = 118
_WHO: Final = re.compile(r"://[^/@\s]*@")  # who logs in, in an address


def template() -> str:
    """Return a file with every setting, commented out, with its default and what it means."""
    head = _comment(
        "Settings of a mesh: one file for all its services. `trinity-bus --config FILE ...` or TRINITY_BUS_CONFIG "
        "names it; a variable such as TRINITY_BUS_MESH__MODEL counts more than the file, and `--set mesh.model=...` "
        "more than that. What is commented out is the default, or unset. `trinity-bus config check` checks it."
    )
    tables = [_table(name, kind) for name, kind in sections().items()]
    return "\n".join([f"#:schema {SCHEMA.as_uri()}", head, *tables]) + "\n"


def _table(name: str, kind: type[Section]) -> str:
    lines = ["", _comment(inspect.getdoc(kind) or ""), f"[{name}]"]
    for key, field in kind.model_fields.items():
        if not is_of_mesh(field):
            meaning = (field.description or "") + " A secret." * is_secret(field)
            lines += [_comment(meaning), f"#{key} ={_default(field)}"]
    return "\n".join(lines)


def _default(field: FieldInfo) -> str:
    default = field.get_default(call_default_factory=True, validated_data={})
    return "" if default is None else " " + toml_value(default)


def rendered(head: str, values: Mapping[str, object]) -> str:
    """Return a file that gives these settings, by their places, each with the first sentence of what it means."""
    lines = [f"#:schema {SCHEMA.as_uri()}", _comment(head)]
    for name, kind in sections().items():
        given = [key for key in kind.model_fields if f"{name}.{key}" in values]
        lines += ["", f"[{name}]"] * bool(given)
        for key in given:
            meaning = re.split(r"(?<=[.:]) ", " ".join((kind.model_fields[key].description or "").split()), maxsplit=1)
            lines += [_comment(meaning[0]), f"{key} = {toml_value(values[f'{name}.{key}'])}"]
    return "\n".join(lines) + "\n"


def toml_value(value: object) -> str:
    """Return a setting's value as TOML: but for tables and the character "delete", what JSON writes is read alike."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{toml_value(key)} = {toml_value(content)}" for key, content in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    text = json.dumps(str(value) if isinstance(value, Path) else value, ensure_ascii=False)
    return text.replace("\x7f", r"\u007f")


def _comment(docstring: str) -> str:
    text = " ".join(docstring.replace("``", "`").split())
    return "\n".join(f"# {line}" for line in wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False))


def json_schema() -> dict[str, Any]:
    schema = Sections.model_json_schema()
    for definition in schema["$defs"].values():
        properties = definition.get("properties", {})
        for name in [name for name, field in properties.items() if field.pop("of_mesh", False)]:
            del properties[name]
        for field in properties.values():
            _without_null(field)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "Settings of a mesh"}


def _without_null(field: dict[str, Any]) -> None:
    # TOML has no null: what is unset is left out.
    if "default" in field and field["default"] is None:
        del field["default"]
    kinds = [kind for kind in field.get("anyOf", ()) if kind != {"type": "null"}]
    if len(kinds) == 1:
        del field["anyOf"]
        field.update(kinds[0])


def told_settings(settings: Sections, *sections: str) -> dict[str, str]:
    """Return the settings of some sections as text, by their paths; empty where one is not set."""
    told = {}
    for path, field in setting_fields().items():
        section, _, name = path.partition(".")
        if section in sections and not is_secret(field):
            value = getattr(getattr(settings, section), name)
            text = "" if value is None else toml_value(to_jsonable_python(value))
            told[path] = _WHO.sub("://***@", text)[:MAX_SETTING_CHARS]
    return told


def values_told(told: Mapping[str, str], paths: Iterable[str]) -> dict[str, Any]:
    """Return the values of settings that ``told_settings`` has made text of, by their paths; those that are set."""
    found = {}
    for path in paths:
        if text := told.get(path):
            try:
                found[path] = tomllib.loads(f"value = {text}")["value"]
            except (ValueError, KeyError, RecursionError):
                # It was too long to be told whole, or somebody else has written it.
                raise ConfigError(f"what was told of {path} is no value: {text[:80]!r}") from None
    return found
