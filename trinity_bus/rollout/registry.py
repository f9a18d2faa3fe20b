"""The registry of workflows: the only way from a name in a task to code.

A name off the wire is looked up here and nowhere else; nothing is imported by it. Workflows come from this project,
from modules that somebody on this machine names, and from installed packages, by entry points for modules that register
them:

    [project.entry-points."trinity_bus.workflows"]
    my-games = "my_games"
"""

import importlib
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

from trinity_bus.errors import ConfigError, TrinityError
from trinity_bus.rollout.workflow import Workflow

REGISTRY: dict[str, Workflow] = {}  # name to workflow, filled by ``register``


class UnknownWorkflow(TrinityError, LookupError):  # noqa: N818 - reads as what it is where it is raised and caught
    pass


def register[W: Workflow](name: str) -> Callable[[type[W]], type[W]]:
    """Class decorator: put one instance of a workflow class, made without arguments, into the registry."""

    def add(cls: type[W]) -> type[W]:
        known = REGISTRY.get(name)
        if known is not None and type(known).__qualname__ != cls.__qualname__:
            raise ValueError(f"workflow name {name!r} is taken by {type(known).__qualname__}; choose another")
        cls.name = name
        REGISTRY[name] = cls()
        return cls

    return add


def get_workflow(name: str) -> Workflow:
    try:
        return REGISTRY[name]
    except KeyError:
        known = ", ".join(sorted(REGISTRY)) or "none"
        raise UnknownWorkflow(f"unknown workflow {name!r}; known: {known}") from None


GROUP: Final = "trinity_bus.workflows"


def load_installed() -> None:
    """Import what installed packages name, so that it registers its workflows; ConfigError where that fails."""
    for entry in entry_points(group=GROUP):
        try:
            entry.load()
        # It is somebody else's, and may raise anything while it is imported.
        except Exception as error:
            package = "" if entry.dist is None else f" of {entry.dist.name}"
            raise ConfigError(
                f"the workflows {entry.name!r}{package} ({entry.value}) cannot be imported: "
                f"{type(error).__name__}: {error}; mend or uninstall it"
            ) from error


def find_workflow(wanted: str) -> str:
    """Return the name of a workflow, once it is registered.

    ``wanted`` is its name, or the module or the file that registers it. ConfigError: the module registers none, or
    several. UnknownWorkflow: there is neither. What the module raises while it is imported is raised here.
    """
    load_installed()
    if wanted in REGISTRY:
        return wanted
    path = Path(wanted)
    is_file = path.suffix == ".py"
    module = path.stem if is_file else wanted
    sys.path.insert(0, str(path.parent.resolve() if is_file else Path.cwd()))
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0] and error.name != module:
            raise
        # Says which there are.
        get_workflow(wanted)
        raise UnknownWorkflow(wanted) from error
    found = [name for name, workflow in REGISTRY.items() if type(workflow).__module__ == module]
    if not found:
        raise ConfigError(f"{wanted} registers no workflow: name the module or the file (.py) that does")
    if len(found) > 1:
        known = ", ".join(sorted(found))
        raise ConfigError(f"{wanted} registers {len(found)} workflows ({known}): name one, with its module imported")
    return found[0]
