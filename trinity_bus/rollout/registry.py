"""The registry of workflows: the only way from a name in a task to code.

A name off the wire is looked up here and nowhere else; nothing is imported by it. Who fills it: ``find``, and the
setting ``explorer.workflow_modules``.
"""

from collections.abc import Callable

from trinity_bus.errors import TrinityError
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
