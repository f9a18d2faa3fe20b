"""``trinity-bus workflow``: begin a workflow of one's own, and run one task of it here, without a mesh."""

import asyncio
import json
import re
import shlex
import sys
from collections.abc import Sequence
from importlib import resources
from itertools import groupby
from pathlib import Path
from string import Template
from typing import Annotated, Any, Final

import typer

from schemas.errors import counted, printable
from trinity_bus.errors import ConfigError
from trinity_bus.rollout.registry import GROUP, find_workflow
from workers.cli.console import say

app = typer.Typer(no_args_is_help=True)

_NAME: Final = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
# What a workflow of one's own begins with: a package, its entry point, a workflow and a test that passes
_FILES: Final = {
    "pyproject.toml": "workflow_pyproject.txt",
    "$module.py": "workflow_module.txt",
    "test_$module.py": "workflow_test.txt",
}


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="Name of the package and its workflow, such as my-sums.")],
    folder: Annotated[Path | None, typer.Option("--in", help="Parent folder. Unset: the working folder.")] = None,
) -> None:
    """Make a package with a workflow, a test, and the entry point by which explorers find it."""
    module = name.replace("-", "_")
    made = _write_package(name, module, folder or Path())
    where, file = shlex.quote(str(made)), shlex.quote(f"{made / module}.py")
    say(
        f"{made} is there. Next:",
        f"  python -m pytest {where}",
        f'  trinity-bus workflow run {file} --task \'{{"prompt": "17 + 25?", "answer": "42"}}\'',
        f"  PYTHONPATH={where} TRINITY_BUS_EXPLORER__WORKFLOW_MODULES={module} trinity-bus run explorer",
    )


def _write_package(name: str, module: str, parent: Path) -> Path:
    """Write a package, and return its folder. Raises ConfigError for no name of a package, or one that is there."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is no name of a package: lower-case letters, digits, - and _, such as my-sums")
    folder = parent / name
    if folder.exists():
        raise ConfigError(f"{folder} is there already: choose another name")
    class_name = "".join(part.capitalize() for part in module.split("_"))
    words = {"name": name, "module": module, "class_name": class_name, "group": GROUP}
    folder.mkdir(parents=True)
    for file, template in _FILES.items():
        text = resources.files("workers.cli").joinpath(template).read_text(encoding="utf-8")
        (folder / Template(file).substitute(words)).write_text(Template(text).substitute(words), encoding="utf-8")
    return folder


@app.command()
def run(
    workflow: Annotated[str, typer.Argument(help="Its name, or the module or file (.py) that registers it.")],
    task: Annotated[str, typer.Option(help="The task as JSON; id and workflow are optional.")] = "{}",
    engine: Annotated[
        Path | None,
        typer.Option(help="Folder of a Hugging Face model. Unset: you type the responses, one on each line."),
    ] = None,
    runs: Annotated[int, typer.Option(min=1, help="Number of runs.")] = 1,
) -> None:
    """Run one task here, and print the conversation, its tokens, which are trained on, its reward and metrics.

    Needs no broker and no explorer. Applies an explorer's checks.
    """
    from schemas.task import Task
    from trinity_bus.rollout.registry import get_workflow
    from trinity_bus.testing import ScriptedEngine, run_workflow

    name = find_workflow(workflow)
    wanted = Task(**{"task_id": "local", "workflow": name, **_json(task), "repeat_times": runs})
    drawing: Any = ScriptedEngine(_typed)
    if engine is not None:
        from workers.demo.local_engine import LocalEngine

        drawing = LocalEngine(engine)
    rollouts = asyncio.run(run_workflow(get_workflow(wanted.workflow), wanted, drawing))
    for number, rollout in enumerate(rollouts):
        _show(number if rollout.run_id is None else rollout.run_id, rollout, drawing.tokenizer)


def _json(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"--task is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise typer.BadParameter("--task is no JSON object")
    return found


def _typed(prompt: str) -> str:
    typer.echo(f"{printable(prompt)}", err=True)
    line = sys.stdin.readline()
    if not line:
        raise ConfigError(
            "the workflow requests a response, but standard input has ended: give one line for each, or use --engine"
        )
    return line.rstrip("\n")


def _show(run_id: int, rollout: Any, tokenizer: Any) -> None:
    tokens = list(rollout.response_token_ids)
    mask = [True] * len(tokens) if rollout.mask is None else [bool(one) for one in rollout.mask]
    _line(
        f"run {run_id}", f"reward {rollout.reward:g}, {counted(len(tokens), 'token')}, {sum(mask)} of them trained on"
    )
    _line("prompt", _text(tokenizer, list(rollout.prompt_token_ids)))
    for drawn, part in groupby(zip(mask, tokens, strict=True), key=lambda one: one[0]):
        _line("sampled" if drawn else "context", _text(tokenizer, [token for _, token in part]))
    _line("tokens", " ".join(map(str, tokens)))
    _line("mask", "".join("1" if drawn else "0" for drawn in mask))
    _line("metrics", ", ".join(f"{name} {value:g}" for name, value in sorted(rollout.metrics.items())))


def _text(tokenizer: Any, tokens: Sequence[int]) -> str:
    return printable(tokenizer.decode(list(tokens)).replace("\n", "\\n"))


def _line(label: str, text: str) -> None:
    say(f"{label:8} {text}")
