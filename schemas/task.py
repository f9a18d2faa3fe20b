"""Tasks: what anyone may ask the mesh to do.

A task is one prompt (or anything its workflow understands) that explorers run ``repeat_times`` times; the samples of
one task form a group. A task may name its batch; a task that names none joins the next batch of the configured size.
"""

import uuid
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, model_validator

from schemas.free_form import MAX_ITEMS
from schemas.record import BatchType, Identifier, PlainMap, Record

MAX_PROMPT_CHARS = 1 << 20
MAX_MESSAGES = 4096
MAX_STOPS = 1024
MAX_VOCABULARY = 2**31 - 1
MAX_REPEAT_TIMES = 1024
MAX_TEMPERATURE = 10


class Sampling(Record):
    """How tokens are drawn. An absent field takes the explorer's default."""

    SCHEMA: ClassVar[str] = "sampling"

    temperature: Annotated[float, Field(ge=0, le=MAX_TEMPERATURE)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=MAX_VOCABULARY)] | None = None
    """Only so many of the likeliest tokens; -1 and 0: all."""
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    """Only tokens that are at least so likely, as a share of the likeliest one's probability."""
    max_tokens: Annotated[int, Field(ge=1, le=1 << 20)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: Annotated[list[str], Field(max_length=MAX_STOPS)] | None = None


class Message(Record):
    """One chat message, OpenAI's shape."""

    SCHEMA: ClassVar[str] = "message"

    role: Annotated[str, Field(min_length=1, max_length=32)]
    content: Annotated[str, Field(max_length=MAX_PROMPT_CHARS)]


def _some_id() -> str:
    return f"task-{uuid.uuid4().hex[:16]}"


def _id_is_required(schema: dict[str, Any]) -> None:
    """Describe what is on the wire, where every task has an id."""
    del schema["properties"]["task_id"]["default"]
    schema["required"].insert(0, "task_id")


class Task(Record):
    """One task. Produced by anyone to ``tasks``, keyed by ``task_id``, as msgpack or JSON."""

    model_config = ConfigDict(json_schema_extra=_id_is_required)

    SCHEMA: ClassVar[str] = "task"
    JSON: ClassVar[bool] = True
    SENT_ON: ClassVar[bool] = True
    MAX_BYTES: ClassVar[int] = 4 << 20

    KNOWN_AS: ClassVar[Mapping[str, str]] = {
        "is_eval": "batch_type",
        "raw_task": "data",
        "rollout_args": "sampling",
        "workflow_args": "data",
        "format_args": "data",
        "truth": "answer",
    }
    FILLED: ClassVar[Mapping[str, Callable[[], Any]]] = {"task_id": _some_id}

    task_id: Annotated[Identifier, Field(validate_default=True)] = ""
    """Unlike that of every other task. A program that makes one may leave it to chance."""
    workflow: Identifier
    """The name of a workflow in the explorers' registry, such as ``math``."""
    prompt: Annotated[str, Field(max_length=MAX_PROMPT_CHARS)] | None = None
    messages: Annotated[list[Message], Field(max_length=MAX_MESSAGES)] | None = None
    answer: Annotated[str, Field(max_length=MAX_PROMPT_CHARS)] | None = None
    """The reference answer, where the workflow's reward needs one."""
    data: PlainMap = Field(default_factory=dict)
    """Whatever else the workflow reads. Plain values only."""
    batch_id: Identifier | None = None
    batch_type: BatchType = "train"
    batch_size: Annotated[int, Field(ge=1, le=MAX_ITEMS)] | None = None
    """How many tasks the named batch has; the configured batch size where absent."""
    repeat_times: Annotated[int, Field(ge=1, le=MAX_REPEAT_TIMES)] | None = None
    """Samples of this task (the group size of GRPO); the configured group size where absent."""
    sampling: Sampling | None = None
    timeout_s: Annotated[float, Field(gt=0, le=86_400)] | None = None
    """Seconds for one attempt; the configured timeout where absent."""
    producer: Identifier | None = None
    """Who sends it, by a name of its own choice: slots are shared among producers, and caps are for each. Absent: the
    client that has submitted the batch; else all who give no name are one."""

    @model_validator(mode="after")
    def _has_something_to_run(self) -> "Task":
        if self.prompt is None and self.messages is None and not self.data:
            raise ValueError("a task needs at least one of prompt, messages or data")
        return self
