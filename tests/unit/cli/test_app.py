"""The command line as a whole: light, listed, and one line for what goes wrong."""

import importlib
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from trinity_bus.errors import TrinityError
from workers.cli import app as cli

HEAVY = ("torch", "vllm", "megatron", "transformers", "aiokafka", "numpy", "pydantic")


def test_help_lists_every_command() -> None:
    shown = CliRunner().invoke(cli.app, ["--help"])
    assert shown.exit_code == 0
    # Long lines are wrapped within a box.
    text = " ".join(shown.stdout.replace("│", " ").split())
    for name, lazy in cli.COMMANDS.items():
        assert f"{name} {lazy.help}" in text


def test_help_loads_nothing_heavy() -> None:
    program = "import sys, workers.cli.app as a\ntry: a.main()\nexcept SystemExit: print(*sys.modules)"
    command = [sys.executable, "-c", program, "--help"]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1].split()
    assert "workers.cli.app" in loaded
    assert [name for name in HEAVY if name in loaded] == []


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_help(name: str) -> None:
    shown = CliRunner().invoke(cli.app, [name, "--help"])
    assert shown.exit_code == 0, shown.output
    assert "Usage" in shown.stdout


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_no_command_loads_a_framework_when_it_is_imported(name: str) -> None:
    program = f"import sys, {cli.COMMANDS[name].module}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert [module for module in ("torch", "vllm", "megatron", "transformers") if module in loaded] == []


def test_an_unknown_command_is_refused() -> None:
    assert CliRunner().invoke(cli.app, ["no-such-command"]).exit_code == 2


def test_version() -> None:
    assert CliRunner().invoke(cli.app, ["--version"]).stdout.startswith("trinity-bus ")


@pytest.mark.parametrize(
    ("error", "explained"),
    [
        (TrinityError("no broker: start one"), "no broker: start one\n"),
        (
            ModuleNotFoundError("No module named 'torch'", name="torch.nn"),
            "this needs the package torch, which an extra brings",
        ),
        (ModuleNotFoundError("No module named 'schemas.typo'", name="schemas.typo"), None),
        (KeyError("a defect"), None),
    ],
    ids=["ours", "an extra is not installed", "a module that nobody has", "a defect"],
)
def test_errors_are_one_line_and_defects_are_not_hidden(
    error: Exception, explained: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = typer.Typer()

    @broken.command()
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
