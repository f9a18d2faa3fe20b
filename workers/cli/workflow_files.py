"""The files that a workflow of one's own begins with: a package, its entry point, a workflow and a test that passes."""

import re
from pathlib import Path
from string import Template
from typing import Final

from trinity_bus.errors import ConfigError
from trinity_bus.rollout.registry import GROUP

_NAME: Final = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
_PROJECT: Final = Template("""[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "$name"
version = "0.1.0"
requires-python = ">=3.12,<3.13"
dependencies = ["trinity-bus[runner]"]

# Explorers that have this package in their runners' environment know its workflows.
[project.entry-points."$group"]
$name = "$module"

[tool.setuptools]
py-modules = ["$module"]

[tool.pytest.ini_options]
pythonpath = ["."]
""")
_WORKFLOW: Final = Template('''"""The workflow ``$name``: what a model is asked, and what its answer is worth."""

from trinity_bus import Conversation, Task, ToolWorkflow, register


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@register("$name")
class $class_name(ToolWorkflow):
    """Rewards an answer that is the task's. The model may call ``add``."""

    tools = (add,)
    max_turns = 4

    async def reward(self, task: Task, conversation: Conversation) -> float:
        """Return 1 for the right answer, and 0 otherwise."""
        return float(conversation.answer.strip() == task.answer)
''')
_TEST: Final = Template('''"""What the workflow makes of answers. The engine says what it is told to."""

import asyncio

from $module import $class_name
from trinity_bus import Task
from trinity_bus.testing import ScriptedEngine, run_workflow

CALL = '<tool_call>{"name": "add", "arguments": {"a": 17, "b": 25}}</tool_call>'
TASK = Task(workflow="$name", prompt="17 + 25?", answer="42")


def test_the_tools_answer_said_again_is_right():
    engine = ScriptedEngine([CALL, "42"])
    (rollout,) = asyncio.run(run_workflow($class_name(), TASK, engine))
    assert "tool: 42" in engine.requests[1].prompt
    assert (rollout.reward, rollout.metrics["tool_calls"]) == (1.0, 1.0)


def test_anything_else_is_wrong():
    (rollout,) = asyncio.run(run_workflow($class_name(), TASK, ScriptedEngine(["41"])))
    assert rollout.reward == 0.0
''')


def module_of(name: str) -> str:
    return name.replace("-", "_")


def write_package(name: str, parent: Path) -> Path:
    """Write a package, and return its folder. Raises ConfigError for no name of a package, or one that is there."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is no name of a package: lower-case letters, digits, - and _, such as my-sums")
    folder, module = parent / name, module_of(name)
    if folder.exists():
        raise ConfigError(f"{folder} is there already: choose another name")
    class_name = "".join(part.capitalize() for part in module.split("_"))
    words = {"name": name, "module": module, "class_name": class_name, "group": GROUP}
    folder.mkdir(parents=True)
    for file, text in (("pyproject.toml", _PROJECT), (f"{module}.py", _WORKFLOW), (f"test_{module}.py", _TEST)):
        (folder / file).write_text(text.substitute(words), encoding="utf-8")
    return folder
