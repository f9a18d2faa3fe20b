"""Everything that ``docs/counterparts.md`` names of this project is there: files, modules, commands, settings."""

import ast
import asyncio
import builtins
import keyword
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

from trinity_bus.config import Settings
from workers.cli.app import COMMANDS

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "counterparts.md").read_text()
PATH = re.compile(r"(?:trinity_bus|workers|schemas|recipes)/[\w/]+(?:\.\w+)?")
MODULE = re.compile(r"((?:trinity_bus|workers|schemas)(?:\.\w+)+)(?:\(.*\))?")
COMMAND = re.compile(r"trinity-bus ([a-z][a-z-]*)")
SETTING = re.compile(r"([a-z]+)\.([a-z]\w*)(?:=.*| = .*)?")
ATTRIBUTE = re.compile(r"(?:ctx|[A-Z]\w*)(?:\.\w+)*")
WORD = re.compile(r"([a-z_][\w-]*)(?:\(\)|=\w*| = \w+)?")
END_OF_PATH = re.compile(r"\.\.\.(/[\w/]+\.py)")


def here(page: str) -> Iterator[str]:
    """What stands in code in the second column of each table, where things of this project are named."""
    for line in page.splitlines():
        cells = re.split(r"(?<!\\)\|", line)
        # Tables of two settings and of their defaults have four columns.
        for cell in [] if len(cells) < 4 else cells[3:4] if len(cells) == 6 else cells[2:3]:
            yield from re.findall(r"`([^`]+)`", cell)


def resolves(dotted: str) -> bool:
    parts = dotted.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: object = import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for name in parts[count:]:
            if not hasattr(found, name):
                return False
            found = getattr(found, name)
        return True
    return False


@cache
def words() -> set[str]:
    found: set[str] = set()
    for file in [file for folder in ("trinity_bus", "workers", "schemas") for file in (ROOT / folder).rglob("*.py")]:
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    found.add(name)
                case ast.arg(arg=name) | ast.Name(id=name) | ast.Attribute(attr=name) | ast.Constant(value=str(name)):
                    found.add(name)
    return found


def is_named(code: str) -> bool | None:
    """Whether the sources have what is named; None where it is no name."""
    if ending := END_OF_PATH.fullmatch(code):
        return any(str(file).endswith(ending[1]) for file in (ROOT / "trinity_bus").rglob("*.py"))
    if ATTRIBUTE.fullmatch(code):
        first, *others = code.split(".")
        is_kind = first == "ctx" or first in words() or hasattr(builtins, first) or hasattr(asyncio, first)
        return is_kind and words().issuperset(others)
    word = WORD.fullmatch(code)
    return None if word is None else keyword.iskeyword(word[1]) or word[1] in words()


def missing(page: str) -> list[str]:
    gone = []
    sections = Settings.model_fields
    for code in here(page):
        if PATH.fullmatch(code):
            there = (ROOT / code).exists()
        elif named := MODULE.fullmatch(code):
            there = resolves(named[1])
        elif command := COMMAND.match(code):
            there = command[1] in COMMANDS
        elif (setting := SETTING.fullmatch(code)) and setting[1] in sections:
            fields = getattr(sections[setting[1]].annotation, "model_fields", {})
            there = setting[2] in fields
        elif (named_here := is_named(code)) is not None:
            there = named_here
        else:
            continue
        if not there:
            gone.append(code)
    return gone


def test_every_counterpart_that_the_page_names_is_there_and_one_that_is_gone_is_found() -> None:
    assert missing(PAGE) == []
    gone = ["trinity_bus/no.py", "trinity_bus.NoSuch", "trinity-bus no-such", "explorer.no_such", ".../no_such.py"]
    gone += ["NoSuch", "BatchRecord.no_such", "NoSuch.serve", "TrainingEngine.progress.no_such", "no_such_word"]
    there = ["trainer.loss=grpo", "TrainingEngine.progress.step", "BatchRecord.manifest", "ctx.chat", "run_once"]
    assert missing(f"| there | {', '.join(f'`{code}`' for code in gone + there)} |") == gone
    assert len(list(here(PAGE))) > 150
