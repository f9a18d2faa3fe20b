"""Whether a mesh can be run with what is wanted: everything that is wrong, by the fields to mend.

::

    answers --types, bounds--> settings --what each service refuses--> the model: lengths, layout --> memory

Later checks need what earlier ones found; each tells all that it can. Secrets are not known here: a service that needs
one is told of by the variable, and is no problem.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from trinity_bus.config.mesh import TAKES_PART
from trinity_bus.config.sections import Sections
from trinity_bus.config.settings import read_given
from trinity_bus.console.configuration.questions import EXTRA_FIELDS, TASKS, Draft, fields
from trinity_bus.errors import TrinityError
from trinity_bus.sizing.hardware import spread
from trinity_bus.sizing.memory import GIB, HostMemory, MemoryNeed, explorer_memory, trainer_memory
from trinity_bus.training import layout_rules
from trinity_bus.training.errors import ParallelError
from trinity_bus.training.families import ModelShape

_PLACE: Final = re.compile(r"\b[a-z]+\.[a-z_0-9]+\b")
_UNSET: Final = re.compile(r"^([a-z]+\.[a-z_0-9]+) is not set")
_STAND_IN: Final = "whatever-it-will-be"  # For a secret, whose place is all that is checked


@dataclass(frozen=True, slots=True)
class SettingProblem:
    text: str
    paths: Sequence[str]  # Fields that have to do with it


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    draft: Draft  # With what follows from its hardware
    settings: Sections | None = None  # None: they cannot be read
    problems: Sequence[SettingProblem] = ()
    unfinished: Sequence[str] = ()  # Fields that must be filled in
    secrets: Sequence[str] = ()  # Variables that services need beside
    services: Sequence[str] = ()  # That take part
    trainer: MemoryNeed | None = None  # What each of its GPUs needs; None: not known, or there is no trainer
    explorer: MemoryNeed | None = None
    notes: Sequence[str] = ()
    too_large: str = ""  # Why this machine's memory is not enough for it; another's may be

    @property
    def is_sound(self) -> bool:
        """Whether the services would start with it."""
        return self.settings is not None and not self.problems

    def of(self, path: str) -> str:
        return "; ".join(one.text for one in self.problems if path in one.paths)


@dataclass(frozen=True, slots=True)
class Checks:
    refusals: Callable[[str, Sections], Sequence[str]]  # Says what a service would refuse
    shape: Callable[[str], ModelShape | None]  # Reads a model's folder; None of a model that is not here
    is_there: Callable[[str], bool]  # Whether rows are at a path
    # Says what services need of this machine's memory, if that is known
    memory: Callable[[Sequence[str], Sections], HostMemory | None] = lambda _, __: None

    def __call__(self, draft: Draft, *, lay_out: bool = False) -> Checked:
        """Check a draft; with ``lay_out`` spread it over its GPUs, where it does not say how."""
        problems = [SettingProblem(text, [path]) for path, text in draft.problems.items()]
        if draft.rows is not None and "rows.path" not in draft.problems and not self.is_there(draft.rows.path):
            problems.append(SettingProblem(f"{draft.rows.path[:200]!r}: there are no such rows", ["rows.path"]))
        secrets, settings, wrong, refused = self._known(draft)
        told = [fields()[path].variable for path in secrets]
        if settings is None:
            problems += map(_problem, wrong.items())
            return Checked(draft=draft, problems=problems, unfinished=_unfinished(problems), secrets=told)
        shape = self._shape(settings, problems)
        if shape is not None and lay_out:
            laid = replace(draft, values={**spread(shape, settings, draft.hardware), **draft.values})
            if (read := _read(laid, secrets)[0]) is not None:
                draft, settings, refused = laid, read, self._refused(read)
        problems += (_problem(("", text)) for text in refused)
        found = Checked(draft=draft, settings=settings, services=_services(settings), secrets=told, problems=problems)
        if shape is not None:
            found = self._beside(_fitted(found, settings, shape), settings)
        return replace(found, unfinished=_unfinished(found.problems))

    def _beside(self, checked: Checked, settings: Sections) -> Checked:
        # Add what all services together need of this machine, where they compute on its CPUs
        hardware = checked.draft.hardware
        on_gpus = hardware.trainer_gpus or hardware.explorer_gpus
        needed = None if on_gpus else self.memory(checked.services, settings)
        if needed is None:
            return checked
        notes = [*checked.notes, needed.impossible or needed.tight or needed.told]
        return replace(checked, notes=notes, too_large=needed.impossible)

    def _shape(self, settings: Sections, problems: list[SettingProblem]) -> ModelShape | None:
        path = settings.mesh.model_path
        try:
            return None if path is None else self.shape(path)
        except (TrinityError, OSError) as error:
            problems.append(SettingProblem(str(error), ["mesh.model_path"]))
            return None

    def _refused(self, settings: Sections) -> list[str]:
        return list(dict.fromkeys(text for name in _services(settings) for text in self.refusals(name, settings)))

    def _known(self, draft: Draft) -> tuple[list[str], Sections | None, Mapping[str, str], list[str]]:
        # The secrets that somebody asks for; settings as if these were there, or why there are none; and what services
        # refuse. One that nobody asks for may contradict others.
        secrets: list[str] = []
        while True:
            settings, wrong = _read(draft, secrets)
            refused = [] if settings is None else self._refused(settings)
            told = [*wrong.values(), *refused]
            new = [path for text in told for path in _paths(text) if fields()[path].is_secret and path not in secrets]
            if not new:
                return secrets, settings, wrong, refused
            # What is asked for next may only be told once these are there.
            secrets += dict.fromkeys(new)


def _read(draft: Draft, secrets: Sequence[str]) -> tuple[Sections | None, Mapping[str, str]]:
    # Read settings, as if these secrets were there
    settings, wrong = read_given({**dict.fromkeys(secrets, _STAND_IN), **draft.values})
    if settings is None or draft.rows is None:
        return settings, wrong
    # It is written when the settings are, and cannot be there yet.
    taskset = settings.taskset.model_copy(update={"path": Path(TASKS)})
    return settings.model_copy(update={"taskset": taskset}), wrong


def _services(settings: Sections) -> list[str]:
    wanted = ["coordinator", "trainer", "explorer", *["taskset"] * (settings.taskset.path is not None)]
    return [name for name in wanted if settings.mesh.mode in TAKES_PART[name]]


def _fitted(checked: Checked, settings: Sections, shape: ModelShape) -> Checked:
    hardware = checked.draft.hardware
    problems, notes = list(checked.problems), []
    if settings.mesh.max_model_len > shape.max_positions:
        problems.append(
            SettingProblem(
                f"mesh.max_model_len is {settings.mesh.max_model_len:,}, and the model takes {shape.max_positions:,} "
                "tokens",
                ["mesh.max_model_len"],
            )
        )
    trainer = explorer = None
    if "trainer" in checked.services:
        trainer = trainer_memory(shape, settings, hardware.trainer_bytes)
        problems += _layout(settings, shape, hardware.trainer_gpus)
        problems += _too_much("trainer", trainer, "hardware.trainer_gpus")
    if "explorer" in checked.services:
        explorer = explorer_memory(shape, settings, hardware.explorer_bytes)
        problems += _too_much("explorer", explorer, "hardware.explorer_gpus")
        size, gpus = settings.explorer.tensor_parallel_size, hardware.explorer_gpus
        if gpus and size > gpus:
            text = f"explorer.tensor_parallel_size is {size}, and there are {gpus} GPUs to generate"
            problems.append(SettingProblem(text, ["explorer.tensor_parallel_size", "hardware.explorer_gpus"]))
        count = hardware.explorers(settings)
        notes += [f"{count} explorer{'s' * (count > 1)}", *explorer.notes]
    return replace(checked, problems=problems, trainer=trainer, explorer=explorer, notes=notes)


def _layout(settings: Sections, shape: ModelShape, gpus: int) -> list[SettingProblem]:
    found = []
    try:
        layout_rules.check(settings.trainer, shape, settings.trainer.engine)
    except ParallelError as error:
        found.append(SettingProblem(str(error), ["trainer.tensor_parallel"]))
    if gpus and settings.trainer.ranks != gpus:
        text = f"the trainer is {settings.trainer.ranks} processes, each with a GPU, and there are {gpus} GPUs to train"
        found.append(SettingProblem(text, ["trainer.data_parallel", "hardware.trainer_gpus"]))
    return found


def _too_much(name: str, need: MemoryNeed, path: str) -> list[SettingProblem]:
    if need.fits or need.available is None:
        return []
    largest = max(need.items, key=lambda item: item.size)
    text = (
        f"each GPU of the {name} needs about {need.total / GIB:.1f} GiB, and may use {need.available / GIB:.1f}: most "
        f"of it for {largest.name}, {largest.size / GIB:.1f} GiB"
    )
    return [SettingProblem(text, [path, "hardware.gpu_gib"])]


def _problem(told: tuple[str, str]) -> SettingProblem:
    path, text = told
    return SettingProblem(text, list(dict.fromkeys([path] * (path in fields()) + _paths(text))))


def _paths(text: str) -> list[str]:
    return [path for path in _PLACE.findall(text) if path in fields()]


def _unfinished(problems: Sequence[SettingProblem]) -> list[str]:
    unset = [found[1] for one in problems if (found := _UNSET.match(one.text)) is not None]
    for one in problems:
        unset += [path for path in one.paths if path in EXTRA_FIELDS and "is not set" in one.text]
    return list(dict.fromkeys(unset))
