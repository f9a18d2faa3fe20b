import ast
import errno
import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from rich.table import Table
from typer.testing import CliRunner

from trinity_bus.errors import TrinityError
from workers.cli import app as cli
from workers.cli.console import console, folding_table

HEAVY = ("torch", "vllm", "megatron", "transformers", "aiokafka", "numpy", "pydantic")


def test_help_lists_every_command() -> None:
    shown = CliRunner().invoke(cli.app, ["--help"])
    assert shown.exit_code == 0
    # Long lines are wrapped within a box.
    text = " ".join(shown.stdout.replace("│", " ").split())
    for name, lazy in cli.COMMANDS.items():
        assert f"{name} {lazy.help}" in text
    assert CliRunner().invoke(cli.app, ["--version"]).stdout.startswith("trinity-bus ")


def test_help_loads_nothing_heavy_and_that_of_a_command_no_framework() -> None:
    program = f"""
import sys
from typer.testing import CliRunner
from workers.cli import app
assert CliRunner().invoke(app.app, ["--help"]).exit_code == 0
assert not {set(HEAVY)} & set(sys.modules)
for name in app.COMMANDS:
    shown = CliRunner().invoke(app.app, [name, "--help"])
    assert (shown.exit_code, "Usage" in shown.stdout) == (0, True), name
    assert not {set(HEAVY[:4])} & set(sys.modules), name
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_who_asks_begins_with_the_model_only_behind_a_system_message() -> None:
    refused = CliRunner().invoke(cli.app, ["ask", "2 + 3", "= 5", "--model", "nowhere"])
    assert (refused.exit_code, "last turn is the user's" in refused.stderr) == (2, True)


def test_an_unknown_command_is_refused_and_the_nearest_named() -> None:
    refused = CliRunner().invoke(cli.app, ["statu"])
    assert refused.exit_code == 2
    assert "No such command 'statu'. Did you mean 'status'?" in refused.output


def test_help_is_wrapped_by_the_terminal_and_not_where_the_source_was() -> None:
    text = CliRunner().invoke(cli.app, ["demo", "--help"], env={"COLUMNS": "300"}).stdout
    assert "`tools`: to call a tool, and to call it again with its result. These two start from" in text


def test_a_narrow_terminal_folds_what_it_shows_and_cuts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    table = folding_table("what", "found", box=None)
    table.add_row("settings", "TRINITY_BUS_TRAINER__CHECKPOINT_DIR is not set, and is needed")
    out = console()
    with out.capture() as shown:
        out.print(table)
    assert "TRINITY_BUS_TRAINER__CHECKPOINT_DIR" in "".join(shown.get().split())


@pytest.mark.parametrize(
    ("error", "explained"),
    [
        (TrinityError("no broker: start one"), "no broker: start one\n"),
        (
            ModuleNotFoundError("No module named 'torch'", name="torch.nn"),
            "this needs the package torch, which an extra brings",
        ),
        (PermissionError(errno.EACCES, "Permission denied", "/no/run"), "/no/run cannot be used: Permission denied; "),
        (OSError(errno.EINVAL, "Invalid argument", "/some/file"), None),
        (ModuleNotFoundError("No module named 'schemas.typo'", name="schemas.typo"), None),
        (KeyError("a defect"), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_are_one_line_and_defects_are_not_hidden(
    error: Exception, explained: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = typer.Typer()

    @broken.command("broker")
    def fail() -> None:
        raise error

    monkeypatch.setattr(importlib.import_module("workers.cli.broker"), "app", broken)
    monkeypatch.setattr(sys, "argv", ["trinity-bus", "broker"])
    if explained is not None:
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == 2
        said = capsys.readouterr().err
        assert said.startswith(f"trinity-bus: {explained}")
        assert said.count("\n") == 1
    else:
        with pytest.raises(type(error)):
            cli.main()


def test_ctrl_c_while_a_command_is_loaded_ends_it_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "app", interrupted)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 130


COMMANDS = Path(__file__).parents[3] / "workers" / "cli"


def test_a_row_is_a_line_in_a_pipe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    table = Table("batch", "reason")
    table.add_row("b-1", "so long a reason that no terminal would hold it " * 20)
    console().print(table)
    lines = capsys.readouterr().out.splitlines()
    assert sum("reason that" in line for line in lines) == 1
    assert len({len(line) for line in lines}) == 1


def test_every_command_prints_there() -> None:
    made = [
        f"{path.stem}:{node.lineno}"
        for path in COMMANDS.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Console"
    ]
    assert [place for place in made if not place.startswith("console:")] == []
