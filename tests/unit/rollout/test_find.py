"""Where workflows come from: packages that name them as entry points, modules and files that somebody names."""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support import packages
from trinity_bus.errors import ConfigError
from trinity_bus.rollout.registry import REGISTRY, UnknownWorkflow, find_workflow, load_installed

type Install = Callable[[str, str, str], None]

WORKFLOW = """
from trinity_bus import agent

@agent({0!r})
async def solve(task, model):
    return 1.0
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    before, modules = dict(REGISTRY), set(sys.modules)

    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield partial(packages.install, tmp_path)
    REGISTRY.clear()
    REGISTRY.update(before)
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def test_an_installed_package_brings_its_workflows(install: Install) -> None:
    install("brings_games", WORKFLOW.format("chess"), "[trinity_bus.workflows]\nchess = brings_games\n")
    load_installed()
    assert "chess" in REGISTRY
    assert find_workflow("chess") == "chess"


def test_one_that_cannot_be_imported_is_named_with_its_package(install: Install) -> None:
    install("broken_games", "1 / 0", "[trinity_bus.workflows]\nchess = broken_games\n")
    with pytest.raises(ConfigError, match=r"'chess' of broken_games .* ZeroDivisionError: division by zero; mend"):
        load_installed()


def test_a_file_or_a_module_names_the_one_workflow_that_it_registers(install: Install, tmp_path: Path) -> None:
    (tmp_path / "own_go.py").write_text(WORKFLOW.format("go"))
    assert find_workflow(str(tmp_path / "own_go.py")) == "go"
    assert find_workflow("own_go") == "go"
    (tmp_path / "two_games.py").write_text(WORKFLOW.format("draughts") + WORKFLOW.format("nim"))
    with pytest.raises(ConfigError, match=r"two_games registers 2 workflows \(draughts, nim\): name one"):
        find_workflow("two_games")
    (tmp_path / "my-games").mkdir()
    with pytest.raises(ConfigError, match="my-games registers no workflow: name the module or the file"):
        find_workflow("my-games")


@pytest.mark.parametrize("wanted", ["no_such_game", "./no/such/game.py"])
def test_what_there_is_not_is_told_with_what_there_is(install: Install, wanted: str) -> None:
    with pytest.raises(UnknownWorkflow, match=r"unknown workflow .*; known: .*math"):
        find_workflow(wanted)
