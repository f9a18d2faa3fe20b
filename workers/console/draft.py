"""A mesh's settings, asked for question by question: what answers mean, whether services would start, files of them.

::

    answers --types, bounds--> settings --what each service refuses--> the model: lengths, layout --> memory

Most questions are a setting in plainer words: type, bounds and default are the setting's, and so is its docstring. The
others ask for what several settings follow from: the GPUs, and the rows of a data set, which become a description of
tasks. A form gives texts by the names of fields. An empty one is no answer. What is no field, or is a secret, is
refused.

Later checks need what earlier ones found; each tells all that it can, by the fields to mend. Secrets are not known
here: a service that needs one is told of by the variable, and is no problem.
"""

import inspect
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

from trinity_bus.config import env_name, sections, setting_fields
from trinity_bus.config.mesh import TAKES_PART
from trinity_bus.config.sections import Sections, is_secret
from trinity_bus.config.settings import read_given
from trinity_bus.config.template import json_schema, rendered, toml_value
from trinity_bus.errors import TrinityError
from trinity_bus.sizing.hardware import Hardware, spread
from trinity_bus.sizing.memory import GIB, HostMemory, MemoryNeed, explorer_memory, trainer_memory
from trinity_bus.training import layout_rules
from trinity_bus.training.errors import ParallelError
from trinity_bus.training.families import ModelShape

type FieldKind = Literal["choice", "switch", "whole", "number", "text", "structure"]

_KINDS: Final[Mapping[str, FieldKind]] = {
    "boolean": "switch",
    "integer": "whole",
    "number": "number",
    "array": "structure",
    "object": "structure",
}
_BOUNDS: Final = (("minimum", "from {}"), ("exclusiveMinimum", "above {}"), ("maximum", "to {}"))
_SWITCH: Final = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class SettingField:
    path: str  # Of the setting, such as ``mesh.model_path``
    kind: FieldKind
    meaning: str
    choices: Sequence[str] = ()
    bounds: str = ""  # In words
    default: str = ""  # As text; empty: unset
    is_secret: bool = False

    @property
    def name(self) -> str:
        return self.path.partition(".")[2]

    @property
    def variable(self) -> str:
        return env_name(self.path)

    def value(self, text: str) -> object:
        """Return what a text means here; the text itself where it is nothing that fits, for the settings to refuse."""
        try:
            match self.kind:
                case "whole":
                    return int(text)
                case "number":
                    return float(text)
                case "switch":
                    return _SWITCH.get(text, text)
                case "structure":
                    return tomllib.loads(f"value = {text}")["value"]
                case _:
                    return text
        except (ValueError, KeyError, RecursionError):
            return text

    def text(self, value: object) -> str:
        return _text(self.kind, value)


@cache
def fields() -> Mapping[str, SettingField]:
    schema = json_schema()
    found = {}
    for path, info in setting_fields().items():
        section, _, name = path.partition(".")
        told = _resolved(schema, _resolved(schema, schema["properties"][section])["properties"][name])
        choices = [str(one) for one in told.get("enum", ())]
        default = info.get_default(call_default_factory=True, validated_data={})
        kind: FieldKind = "choice" if choices else _KINDS.get(told.get("type", ""), "text")
        found[path] = SettingField(
            path=path,
            kind=kind,
            meaning=" ".join((info.description or "").split()),
            choices=choices or list(_SWITCH) * (kind == "switch"),
            bounds=" ".join(words.format(told[name]) for name, words in _BOUNDS if name in told),
            default="" if default in ([], {}) else _text(kind, default),
            is_secret=is_secret(info),
        )
    return found


def sections_of_fields() -> Mapping[str, tuple[str, Sequence[SettingField]]]:
    """Return the sections in their order, each with what it is about and its fields."""
    return {
        name: (inspect.getdoc(kind) or "", [one for one in fields().values() if one.path.startswith(f"{name}.")])
        for name, kind in sections().items()
    }


def _text(kind: FieldKind, value: object) -> str:
    if value is None:
        return ""
    return toml_value(value) if kind in {"structure", "switch"} else str(value)


def _resolved(schema: Mapping[str, Any], node: Mapping[str, Any]) -> Mapping[str, Any]:
    while "$ref" in node:
        node = {**schema["$defs"][node["$ref"].rpartition("/")[2]], **{k: v for k, v in node.items() if k != "$ref"}}
    return node


MAX_ANSWER_CHARS: Final = 20_000
TASKS: Final = "tasks.toml"  # Name of the description of tasks, beside the settings
_COLUMN: Final = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
_MAX_GPUS: Final = 64
_MAX_GIB: Final = 4096.0


class BadAnswerError(TrinityError, ValueError):
    """A form gives what no field takes."""


@dataclass(frozen=True, slots=True)
class TaskRows:
    path: str
    prompt: str  # The column of the question
    answer: str  # The column of the reference answer; empty: there is none
    workflow: str


@dataclass(frozen=True, slots=True)
class Draft:
    values: Mapping[str, object] = field(default_factory=dict)  # By the settings' places
    rows: TaskRows | None = None
    hardware: Hardware = field(default_factory=Hardware)
    # What is wrong with answers that are no settings, by their fields
    problems: Mapping[str, str] = field(default_factory=dict)


_MOST_GPUS: Final = f"from 0 to {_MAX_GPUS}"
HARDWARE: Final = (
    SettingField("hardware.trainer_gpus", "whole", "GPUs for training. 0: the CPU.", bounds=_MOST_GPUS, default="0"),
    SettingField("hardware.explorer_gpus", "whole", "GPUs to generate. 0: the CPU.", bounds=_MOST_GPUS, default="0"),
    SettingField(
        "hardware.gpu_gib",
        "number",
        "Memory of each GPU, GiB: 24 of an RTX 4090, 80 of an A100 or H100, 141 of an H200.",
        bounds=f"above 0 to {_MAX_GIB:g}",
        default="80",
    ),
)
_ROWS: Final = (
    SettingField(
        "rows.path",
        "text",
        "A file of JSON lines, Parquet or CSV, several by a pattern such as train-*.parquet, or a folder that "
        "the library `datasets` has saved. Without a column of questions: a file of tasks, or a description of task "
        "sets in TOML. Unset: other programs send tasks.",
    ),
    SettingField("rows.prompt", "text", "The column that holds the question, such as question."),
    SettingField("rows.answer", "text", "The column that holds the reference answer, such as answer."),
    SettingField(
        "rows.workflow",
        "text",
        "What gives the reward, by the name of a workflow: math compares answers as mathematics. One of your "
        "own needs explorer.workflow_modules.",
    ),
)
EXTRA_FIELDS: Final = {one.path: one for one in (*_ROWS, *HARDWARE)}  # Fields that are no settings

# By the setting that its answer becomes, or one of ``EXTRA_FIELDS``
QUESTIONS: Final = {
    "mesh.namespace": "What is this run called?",
    "mesh.model_path": "Which model is to learn?",
    "rows.path": "From which data?",
    "rows.prompt": "Where is the question in it?",
    "rows.answer": "Where is the right answer?",
    "rows.workflow": "What gives the reward?",
    "mesh.max_model_len": "How long may question and answer be together?",
    "mesh.max_tokens": "How long may an answer be?",
    "coordinator.batch_size": "How many questions make a step?",
    "coordinator.group_size": "How many answers to each?",
    "trainer.advantage": "How are answers compared?",
    "trainer.learning_rate": "How fast is it to learn?",
    "coordinator.max_staleness": "How many versions old may an answer be?",
    "trainer.total_steps": "After how many steps is it done?",
    "trainer.checkpoint_dir": "Where do checkpoints go?",
    "hardware.trainer_gpus": "How many GPUs train?",
    "hardware.explorer_gpus": "How many GPUs generate?",
    "hardware.gpu_gib": "How large are they?",
}


def draft_of(answers: Mapping[str, str]) -> Draft:
    """Return what a form's answers mean. Raises BadAnswerError: one is too long, or for no field, or for a secret."""
    settings, values = fields(), {}
    problems: dict[str, str] = {}
    given = {path: text.strip() for path, text in answers.items() if text.strip()}
    for path, text in given.items():
        if len(text) > MAX_ANSWER_CHARS:
            raise BadAnswerError(f"{path[:100]} has {len(text)} characters: at most {MAX_ANSWER_CHARS} are taken")
        if path in EXTRA_FIELDS:
            continue
        if path not in settings:
            raise BadAnswerError(f"{path[:100]!r} is no setting")
        if settings[path].is_secret:
            raise BadAnswerError(f"{path} is a secret: give it to the services as {settings[path].variable}_FILE")
        values[path] = settings[path].value(text)
    rows = _rows(given, problems)
    if rows is None and "rows.path" in given:
        values.setdefault("taskset.path", given["rows.path"])
    return Draft(values, rows, _hardware(given, problems), problems)


def answers_of(values: Mapping[str, object]) -> dict[str, str]:
    """Return settings as a form's answers. Secrets are left out."""
    known = fields()
    return {path: known[path].text(value) for path, value in values.items() if not known[path].is_secret}


def _rows(given: Mapping[str, str], problems: dict[str, str]) -> TaskRows | None:
    told = {name: given.get(f"rows.{name}", "") for name in ("path", "prompt", "answer", "workflow")}
    if not told["prompt"]:
        for name in ("answer", "workflow"):
            if told[name]:
                problems[f"rows.{name}"] = "this goes together with a column of questions"
        return None
    if not told["path"]:
        problems["rows.path"] = "this is not set: it goes together with a column of questions"
    if not told["workflow"]:
        problems["rows.workflow"] = "this is not set: what is to answer these rows, and judge it"
    elif read_given({"mesh.model": told["workflow"]})[1]:
        problems["rows.workflow"] = f"{told['workflow'][:100]!r} is no name of a workflow"
    for name in ("prompt", "answer"):
        if told[name] and not _COLUMN.match(told[name]):
            problems[f"rows.{name}"] = f"{told[name][:100]!r} is no name of a column: letters, digits and underscores"
    return TaskRows(**told)


def _hardware(given: Mapping[str, str], problems: dict[str, str]) -> Hardware:
    found: dict[str, float] = {}
    for one in HARDWARE:
        value = one.value(given.get(one.path, one.default))
        low, most = (0, _MAX_GPUS) if one.kind == "whole" else (1e-3, _MAX_GIB)
        if isinstance(value, (int, float)) and low <= value <= most:
            found[one.name] = value
        else:
            problems[one.path] = f"{str(value)[:40]!r}: a number {one.bounds}"
    return Hardware(
        trainer_gpus=int(found.get("trainer_gpus", 0)),
        explorer_gpus=int(found.get("explorer_gpus", 0)),
        gpu_gib=found.get("gpu_gib", Hardware().gpu_gib),
    )


def mesh_file(draft: Draft, tasks: str = TASKS) -> str:
    head = (
        "Settings of a mesh, as the console has written them: `trinity-bus --config mesh.toml config check` checks "
        "them. Paths count from the folder that a service is started in. Secrets go into the environment."
    )
    values = {path: value for path, value in draft.values.items() if not fields()[path].is_secret}
    return rendered(head, values | ({} if draft.rows is None else {"taskset.path": tasks}))


def tasks_file(rows: TaskRows) -> str:
    """Return the description of tasks: docs/tasksets.md."""
    lines = [
        "# What is trained on: `trinity-bus tasks tasks.toml --show 2` reads and checks every row.",
        "[[train]]",
        f"path = {toml_value(rows.path)}",
        f"workflow = {toml_value(rows.workflow)}",
        f"prompt = {toml_value('${' + rows.prompt + '}')}",
    ]
    if rows.answer:
        lines.append(f"answer = {toml_value('${' + rows.answer + '}')}")
    return "\n".join(lines) + "\n"


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
