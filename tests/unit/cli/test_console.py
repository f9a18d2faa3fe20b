import ast
from pathlib import Path

import pytest
from rich.table import Table

from workers.cli.console import console

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
