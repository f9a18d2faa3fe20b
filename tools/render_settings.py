"""Writes ``docs/settings.md`` from the settings' types: ``python -m tools.render_settings [--check]``.

The page is derived, never edited; the check that it is current runs with the linters.
"""

import argparse
import inspect
import re
import sys
from pathlib import Path
from typing import Any, Final, get_args

from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from trinity_bus.config import Section, env_name, secret_variables, sections
from trinity_bus.config.mesh import is_of_mesh

PATH: Final = Path(__file__).parents[1] / "docs" / "settings.md"

_HEAD: Final = """\
# Settings

Generated from `trinity_bus/config/`; do not edit. Every setting is an environment variable. A wrong value stops a
service before it starts anything, with one line that names the variable, its value and what would be right. Secrets
are never printed; each can also lie in a file that a variable of its name and `_FILE` gives, such as
`TRINITY_BUS_KAFKA__SASL_PASSWORD_FILE=/run/secrets/explorer`. Durations are in seconds. Traces and metrics are also
configured by OpenTelemetry's own variables, such as `OTEL_EXPORTER_OTLP_ENDPOINT`.
"""


def render() -> str:
    """Return the whole page."""
    return "\n".join([_HEAD, *(_section(name, section) for name, section in sections().items())])


def _section(name: str, section: type[Section]) -> str:
    rows = [
        _row(env_name(f"{name}.{key}"), value) for key, value in section.model_fields.items() if not is_of_mesh(value)
    ]
    title = f"## {name.capitalize()}\n\n{_text(inspect.getdoc(section) or '')}\n"
    return "\n".join([title, "| variable | default | meaning |", "|---|---|---|", *rows, ""])


def _row(variable: str, field: FieldInfo) -> str:
    meaning = _text(field.description or "") + _choices(field.annotation)
    if variable in secret_variables():
        meaning += " A secret."
    return f"| `{variable}` | {_default(field)} | {meaning} |"


def _default(field: FieldInfo) -> str:
    if field.default is None or field.default is PydanticUndefined:
        return ""
    if isinstance(field.default, SecretStr):
        raise TypeError("a secret has no default")
    return f"`{field.default}`"


def _choices(annotation: Any) -> str:
    values = [value for value in get_args(getattr(annotation, "__value__", annotation)) if isinstance(value, str)]
    return f" One of {', '.join(f'`{value}`' for value in values)}." if values else ""


def _text(docstring: str) -> str:
    """One line of Markdown from a docstring's reStructuredText."""
    return re.sub(r"``([^`]+)``", r"`\1`", " ".join(docstring.split())).replace("|", "\\|")


def main() -> int:
    """Write the page, or check that it is current."""
    parser = argparse.ArgumentParser(prog="python -m tools.render_settings", description=__doc__)
    parser.add_argument("--check", action="store_true", help="do not write; exit with 1 if the page is not current")
    current = render()
    if parser.parse_args().check:
        if not PATH.exists() or PATH.read_text(encoding="utf-8") != current:
            sys.stderr.write(f"{PATH} is not current: run `make docs` and commit it\n")
            return 1
        return 0
    PATH.write_text(current, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
