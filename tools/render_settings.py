"""Writes ``docs/settings.md``, and the schema of the settings file, from the settings' types.

``python -m tools.render_settings [--check]``. Both are derived, never edited; the check that they are current runs with
the linters.
"""

import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any, Final, get_args

from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from tools.generated import write_or_check
from trinity_bus.config import Section, env_name, secret_variables, sections
from trinity_bus.config.mesh import is_of_mesh
from trinity_bus.config.template import SCHEMA, json_schema

PATH: Final = Path(__file__).parents[1] / "docs" / "settings.md"

_HEAD: Final = """\
# Settings

Generated from `trinity_bus/config/`; do not edit.

One TOML file has the settings of a whole mesh, with a table for each section below. Commands, services and clients read
the file in `trinity-bus --config mesh.toml ...` or `TRINITY_BUS_CONFIG`. Every setting is also an environment variable:
`batch_size` of the section `coordinator` is `TRINITY_BUS_COORDINATOR__BATCH_SIZE`. The environment overrides the file,
and `trinity-bus --set coordinator.batch_size=32 ...` overrides both. An empty variable is unset. Paths are relative to
the working folder.

```console
trinity-bus config init                             # mesh.toml: every setting with its default, commented out
trinity-bus --config mesh.toml config check         # every error, with its line; exit code 2 then
trinity-bus --config mesh.toml config show          # every value, and its source
```

A service with a wrong value refuses to start; the error names the setting, its source, its value and what would be
right. So does an unknown name in the file, or in a variable that begins with `TRINITY_BUS_` (except Kubernetes' own
`TRINITY_BUS_..._SERVICE_HOST` and `..._PORT`). TOML editors complete and check the file by the JSON schema in its first
line.

Secrets are never printed. Each can also be in a file that a variable with the suffix `_FILE` names, such as
`TRINITY_BUS_KAFKA__SASL_PASSWORD_FILE=/run/secrets/explorer`. `--set` refuses secrets. Durations are in seconds.
OpenTelemetry's variables, such as `OTEL_EXPORTER_OTLP_ENDPOINT`, also apply.
"""


def render() -> str:
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
    """Return a line of Markdown from a docstring's reStructuredText."""
    return re.sub(r"``([^`]+)``", r"`\1`", " ".join(docstring.split())).replace("|", "\\|")


def main() -> int:
    files = {PATH: render(), SCHEMA: json.dumps(json_schema(), indent=1) + "\n"}
    return write_or_check("python -m tools.render_settings", __doc__ or "", files)


if __name__ == "__main__":
    sys.exit(main())
