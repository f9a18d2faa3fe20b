"""``trinity-bus config``: write, show and check a file of settings."""

import json
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import SecretStr

from schemas.errors import printable
from trinity_bus.config import Origins, Settings, WrongSettingsError, sections, setting_fields
from trinity_bus.config.sections import is_secret
from trinity_bus.config.template import template, toml_value
from trinity_bus.errors import ConfigError
from trinity_bus.sizing.memory import HostMemory, limit_bytes
from workers.cli.console import console, folding_table, say
from workers.preconditions import PRECONDITIONS, left_out, memory, problems

app = typer.Typer(no_args_is_help=True)

_WRONG = 2


@app.command()
def init(
    file: Annotated[Path, typer.Argument(help="File to write; - for standard output.")] = Path("mesh.toml"),
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Write a file with every setting, commented out, with its default and description."""
    if file == Path("-"):
        typer.echo(template(), nl=False)
        return
    text = template()
    try:
        with file.open("w" if force else "x", encoding="utf-8") as target:
            target.write(text)
    except FileExistsError:
        raise ConfigError(f"{file} is there already; --force replaces it") from None
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}") from None
    name = shlex.quote(str(file))
    say(f"Wrote {file}; change it, then: trinity-bus --config {name} config check")


@app.command()
def show(
    section: Annotated[str | None, typer.Argument(help="Only this section.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show every setting and the source of its value. Secrets are never shown."""
    if section is not None and section not in sections():
        raise typer.BadParameter(f"{section} is not one of {', '.join(sections())}")
    settings, origins = Settings(), Origins(Settings)
    table = folding_table("setting", "value", "from", box=None)
    facts = {}
    for path in setting_fields():
        name, _, key = path.partition(".")
        if section in {None, name}:
            value = getattr(getattr(settings, name), key)
            origin = origins.of(path) or "default"
            facts[path] = {"value": _shown(path, value), "from": origin}
            table.add_row(path, _text(path, value), origin)
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
    else:
        console().print(table, soft_wrap=True, markup=False)


def _shown(path: str, value: Any) -> Any:
    if is_secret(setting_fields()[path]):
        return None if value is None else "(set)"
    return str(value) if isinstance(value, Path) else value


def _text(path: str, value: Any) -> str:
    if value is None:
        return "-"
    return "(set)" if isinstance(value, SecretStr) else printable(toml_value(_shown(path, value)))


@app.command()
def check(
    services: Annotated[
        list[str] | None,
        typer.Argument(help="Services that start with these settings. Unset: coordinator, explorer and trainer."),
    ] = None,
    limits: Annotated[bool, typer.Option("--limits", help="Print memory limits as in the stack's .env.")] = False,
) -> None:
    """Show all errors: in single settings, and those for which services would refuse to start. Exit code 2 then.

    If the model is a folder on this machine and runs on CPUs, show the memory that each service needs, too.
    """
    wanted = services or ["coordinator", "explorer", "trainer"]
    if unknown := set(wanted) - set(PRECONDITIONS):
        raise typer.BadParameter(f"{', '.join(sorted(unknown))} is not one of {', '.join(PRECONDITIONS)}")
    needed = None
    try:
        settings = Settings()
        needed = memory(wanted, settings)
        found = list(dict.fromkeys(problem for service in wanted for problem in problems(service, settings)))
    except WrongSettingsError as error:
        found = list(error.problems)
    if needed is not None and needed.impossible and not limits:
        found.append(Origins(Settings).told(needed.impossible))
    for problem in found:
        sys.stderr.write(printable(problem) + "\n")
    if found:
        raise typer.Exit(_WRONG)
    if limits:
        _print_limits(wanted, needed)
        return
    say(f"Nothing is wrong: {', '.join(wanted)} can start with these settings.")
    _warn(dict.fromkeys(left_out(service, settings) for service in wanted))
    if needed is not None and needed.tight:
        _warn([needed.tight])
    elif needed is not None:
        say(needed.told)


def _warn(lines: Iterable[str | None]) -> None:
    for line in lines:
        if line is not None:
            sys.stderr.write(f"warning: {printable(line)}\n")


def _print_limits(services: list[str], needed: HostMemory | None) -> None:
    if needed is None:
        raise ConfigError("limits follow from a model's folder on this machine, where it is computed on CPUs")
    for name, need in needed.needs:
        if name in services:
            typer.echo(f"{name.upper()}_MEMORY={limit_bytes(need) >> 20}m")
