"""What a form asks for each setting: made of its type, bounds, default and docstring, so that nothing is said twice."""

import inspect
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal

from trinity_bus.config import env_name, sections, setting_fields
from trinity_bus.config.sections import is_secret
from trinity_bus.config.template import json_schema, toml_value

type FieldKind = Literal["choice", "switch", "whole", "number", "text", "structure"]

_KINDS: Final[Mapping[str, FieldKind]] = {
    "boolean": "switch",
    "integer": "whole",
    "number": "number",
    "array": "structure",
    "object": "structure",
}
_BOUNDS: Final = (("minimum", "from {}"), ("exclusiveMinimum", "above {}"), ("maximum", "to {}"))
_SWITCH: Final = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class SettingField:
    path: str  # Of the setting, such as ``mesh.model_path``
    kind: FieldKind
    meaning: str
    choices: Sequence[str] = ()
    bounds: str = ""  # In words
    default: str = ""  # As text; empty: unset
    is_secret: bool = False

    @property
    def name(self) -> str:
        return self.path.partition(".")[2]

    @property
    def variable(self) -> str:
        return env_name(self.path)

    def value(self, text: str) -> object:
        """Return what a text means here; the text itself where it is nothing that fits, for the settings to refuse."""
        try:
            match self.kind:
                case "whole":
                    return int(text)
                case "number":
                    return float(text)
                case "switch":
                    return _SWITCH.get(text, text)
                case "structure":
                    return tomllib.loads(f"value = {text}")["value"]
                case _:
                    return text
        except (ValueError, KeyError, RecursionError):
            return text

    def text(self, value: object) -> str:
        return _text(self.kind, value)


@cache
def fields() -> Mapping[str, SettingField]:
    schema = json_schema()
    found = {}
    for path, info in setting_fields().items():
        section, _, name = path.partition(".")
        told = _resolved(schema, _resolved(schema, schema["properties"][section])["properties"][name])
        choices = [str(one) for one in told.get("enum", ())]
        default = info.get_default(call_default_factory=True, validated_data={})
        kind: FieldKind = "choice" if choices else _KINDS.get(told.get("type", ""), "text")
        found[path] = SettingField(
            path=path,
            kind=kind,
            meaning=" ".join((info.description or "").split()),
            choices=choices or list(_SWITCH) * (kind == "switch"),
            bounds=" ".join(words.format(told[name]) for name, words in _BOUNDS if name in told),
            default="" if default in ([], {}) else _text(kind, default),
            is_secret=is_secret(info),
        )
    return found


def sections_of_fields() -> Mapping[str, tuple[str, Sequence[SettingField]]]:
    """Return the sections in their order, each with what it is about and its fields."""
    return {
        name: (inspect.getdoc(kind) or "", [one for one in fields().values() if one.path.startswith(f"{name}.")])
        for name, kind in sections().items()
    }


def _text(kind: FieldKind, value: object) -> str:
    if value is None:
        return ""
    return toml_value(value) if kind in {"structure", "switch"} else str(value)


def _resolved(schema: Mapping[str, Any], node: Mapping[str, Any]) -> Mapping[str, Any]:
    while "$ref" in node:
        node = {**schema["$defs"][node["$ref"].rpartition("/")[2]], **{k: v for k, v in node.items() if k != "$ref"}}
    return node
