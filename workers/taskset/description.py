"""Descriptions of task sets: one TOML file that says what to train on, and what to evaluate versions with.

::

    [[train]]
    path = "gsm8k/train-*.parquet"          # from the file's own folder
    workflow = "math"
    prompt = "${question}"                  # columns of a row
    answer = "${answer}"

    [[eval]]
    name = "gsm8k"
    ...

A path that is no description is one set to train on, of rows that are tasks.

Failures: whatever is wrong with a description is a ``DatasetError`` that names the file and the place in it.
"""

import string
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from schemas.record import Identifier, PlainMap
from schemas.sampling import Sampling
from trinity_bus.config.sources import MAX_TOML_BYTES, toml_of
from trinity_bus.config.values import Count
from trinity_bus.errors import ConfigError

SUFFIX = ".toml"
GYM_WORKFLOW = "reasoning-gym"


class DatasetError(ConfigError):
    """What is to become tasks cannot."""


class RowTemplate(string.Template):
    """Text with columns in it, or parts of them: ``${question}``, ``${answers.text.0}``."""

    braceidpattern = r"[^{}]+"


class RowSource(BaseModel, frozen=True, extra="forbid"):
    path: Annotated[str, Field(min_length=1)] | None = None
    """A file (``.jsonl``, ``.json``, ``.csv``, each with ``.gz``, ``.parquet``, ``.arrow``), a folder that the library
    ``datasets`` has saved, or a pattern of several such as ``train-*.parquet``; from the folder of the description.
    Or a folder of Harbor tasks below it."""
    # Instead of a path: a task of reasoning-gym, which makes rows without end.
    gym: Annotated[str, Field(min_length=1)] | None = None
    options: PlainMap = Field(default_factory=dict)  # of that task, as reasoning-gym names them
    size: Count | None = None  # how many of its rows there are; unset: without end
    # How many rows the path has. Another number is an error: it is not the data set that is meant.
    rows: Count | None = None
    # Stands in task ids, and in the metrics of evaluations. Of several sets each needs one.
    name: Identifier | None = None
    # How often its turn comes, beside the others. All sets have a share, or none: then all their rows are one set.
    share: Annotated[int, Field(ge=1, le=1000)] | None = None
    # What makes a task of a row: one that an installed package registers. Unset: what follows; and where there is no
    # ``workflow`` either, rows are tasks already, field by field.
    formatter: Identifier | None = None
    workflow: Identifier | None = None
    # What to ask, with columns in it, or parts of them: ``${question}``, ``${question.text}``. A dollar sign is ``$$``.
    prompt: str | None = None
    system: str | None = None  # what stands before it, as a message of the system
    chat: bool = True  # whether the model's chat template is put around the prompt
    messages: str | None = None  # instead of a prompt: the column that has a conversation
    answer: str | None = None  # the reference answer, with columns in it
    id: str | None = None  # what tells a row from the others, with columns in it; unset: its number
    data: tuple[str, ...] = ()  # columns that the workflow gets as they are
    # The column of how difficult a row is, numbers or text, for the order ``easy_to_hard``.
    difficulty: str | None = None
    repeat_times: Count | None = None  # runs of each task that names no number
    sampling: Sampling | None = None  # how to draw, of each task; what it says itself counts more
    pool: Identifier | None = None
    timeout_s: Annotated[float, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _is_one_thing(self) -> Self:
        if (self.path is None) == (self.gym is None):
            raise ValueError("give a path, or a task of reasoning-gym (gym)")
        if self.gym is None and (self.options or self.size is not None):
            raise ValueError("options and size are those of a gym; there is none")
        if self.gym is not None and (self.formatter or self.workflow or self.prompt or self.messages or self.answer):
            raise ValueError("a task of reasoning-gym brings its own prompt, answer and workflow")
        columns = [self.prompt, self.messages, self.system, self.answer, self.id, self.data or None]
        if self.formatter is not None and (self.workflow or any(of is not None for of in columns)):
            raise ValueError(f"formatter {self.formatter!r} makes whole tasks: leave out workflow, prompt and the like")
        if self.path is not None and self.workflow is None and any(of is not None for of in columns):
            raise ValueError("workflow is missing: which one is to answer these rows")
        if self.workflow is not None and self.prompt is None and self.messages is None and not self.data:
            raise ValueError("prompt is missing: what to ask, such as prompt = '${question}'")
        for template in self.templates:
            if not RowTemplate(template).is_valid():
                raise ValueError(f"{template!r}: a $ that begins no column is written $$, a column ${{name}}")
        return self

    @property
    def templates(self) -> list[str]:
        return [one for one in (self.prompt, self.system, self.answer, self.id) if one is not None]

    @property
    def paths(self) -> list[str] | None:
        """The columns that it takes, or parts of them; None: whole rows."""
        if self.workflow is None:
            return None
        named = [*self.data, *(one for one in (self.messages, self.difficulty) if one is not None)]
        return named + [name for template in self.templates for name in RowTemplate(template).get_identifiers()]


class EvalRows(RowSource):
    name: Identifier  # in batch ids and metrics: ``eval/<name>/...``
    share: None = None
    gym: str | None = None

    @model_validator(mode="after")
    def _ends(self) -> Self:
        if self.gym is not None and self.size is None:
            raise ValueError(f"size is missing: how many rows of {self.gym!r} are to be answered")
        return self


class Description(BaseModel, frozen=True, extra="forbid"):
    train: tuple[RowSource, ...] = ()
    eval: tuple[EvalRows, ...] = ()

    @model_validator(mode="after")
    def _can_be_told_apart(self) -> Self:
        for kind, sources in (("train", self.train), ("eval", self.eval)):
            names = [source.name for source in sources]
            if len(sources) > 1 and len({*names} - {None}) < len(names):
                raise ValueError(f"each of several [[{kind}]] needs a name that no other has")
        if 0 < sum(source.share is not None for source in self.train) < len(self.train):
            raise ValueError("give each [[train]] a share, or none of them")
        if len(self.train) > 1 and any(of.gym and of.size is None and of.share is None for of in self.train):
            raise ValueError("beside a set without end each [[train]] needs a share")
        return self


def describe(path: Path) -> Description:
    if path.suffix != SUFFIX:
        return Description(train=(RowSource(path=path.name),))
    try:
        with path.open("rb") as file:
            found = toml_of(file.read(MAX_TOML_BYTES + 1))
    except OSError as error:
        raise DatasetError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise DatasetError(f"{path}: {error}") from error
    try:
        return Description.model_validate(found)
    except ValidationError as error:
        raise DatasetError("\n".join(f"{path}: {_told(one)}" for one in error.errors(include_url=False))) from error


def _told(error: ErrorDetails) -> str:
    where, what = ".".join(str(part) for part in error["loc"]), error["msg"].removeprefix("Value error, ")
    return f"{where}: {what}" if where else what
