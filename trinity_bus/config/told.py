"""What a service tells of its settings, for people who compare runs: no secrets, and nothing without bounds."""

import re
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic_core import to_jsonable_python

from schemas.event import MAX_SETTING_CHARS
from trinity_bus.config.sections import Sections, is_secret, setting_fields
from trinity_bus.config.template import toml_value
from trinity_bus.errors import ConfigError

_WHO = re.compile(r"://[^/@\s]*@")  # who logs in, in an address


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
    """Return the values of some settings that ``told_settings`` has made text of, by their paths; those that are set.

    Raises:
        ConfigError: A text is no value any more: it was too long to be told whole, or somebody else has written it.
    """
    found = {}
    for path in paths:
        if text := told.get(path):
            try:
                found[path] = tomllib.loads(f"value = {text}")["value"]
            except (ValueError, KeyError, RecursionError):
                raise ConfigError(f"what was told of {path} is no value: {text[:80]!r}") from None
    return found
