"""A beginner's questions, and what answers to them mean as settings.

Most questions are a setting in plainer words: type, bounds and default are the setting's, and so is its docstring. The
others ask for what several settings follow from: the GPUs, and the rows of a data set, which become a description of
tasks.

A form gives texts by the names of fields. An empty one is no answer. What is no field, or is a secret, is refused.
"""

import inspect
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, Literal

from trinity_bus.config import env_name, sections, setting_fields
from trinity_bus.config.sections import is_secret
from trinity_bus.config.settings import read_given
from trinity_bus.config.template import json_schema, toml_value
from trinity_bus.errors import TrinityError
from trinity_bus.sizing.hardware import Hardware

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
