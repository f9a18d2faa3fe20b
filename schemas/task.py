"""Tasks: what anyone may ask the mesh to do.

A task is one prompt (or anything its workflow understands) that explorers run ``repeat_times`` times; the samples of
one task form a group. A task may name its batch; a task that names none joins the next batch of the configured size.
"""

import uuid
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from schemas.fields.free_form import MAX_ITEMS
from schemas.message import MAX_MESSAGES, MAX_PROMPT_CHARS, MAX_TOOLS, Message, Tool, few_items
from schemas.record import BatchType, Identifier, PlainMap, Record
from schemas.sampling import Sampling

MAX_REPEAT_TIMES = 1024


def _id_is_required(schema: dict[str, Any]) -> None:
    # What is on the wire, where every task has an id.
    del schema["properties"]["task_id"]["default"]
    schema["required"].insert(0, "task_id")


# of greedy runs
ALL_ALIKE = "are all alike, and engines refuse them: ask for one run (repeat_times = 1), or for another temperature"


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
    FILLED: ClassVar[Mapping[str, Callable[[], Any]]] = {"task_id": lambda: f"task-{uuid.uuid4().hex[:16]}"}

    task_id: Annotated[Identifier, Field(validate_default=True)] = ""
    """Unlike that of every other task. A program that makes one may leave it to chance."""
    workflow: Identifier
    """The name of a workflow in the explorers' registry, such as ``math``."""
    prompt: Annotated[str, Field(max_length=MAX_PROMPT_CHARS)] | None = None
    messages: Annotated[list[Message], BeforeValidator(few_items), Field(max_length=MAX_MESSAGES)] | None = None
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
    pool: Identifier | None = None
    """Who answers it: explorers of this pool. Absent: those of the model that is trained."""

    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    """What the model may call: the chat template tells it. Which of them there are is for the workflow to say."""

    @model_validator(mode="after")
    def _has_something_to_run(self) -> "Task":
        if self.prompt is None and self.messages is None and not self.data:
            raise ValueError("a task needs at least one of prompt, messages or data")
        if self.is_greedy and (self.repeat_times or 1) > 1:
            raise ValueError(f"{self.repeat_times} runs at temperature 0 {ALL_ALIKE}")
        return self

    @property
    def is_greedy(self) -> bool:
        """Whether it asks for the likeliest tokens."""
        return self.sampling is not None and self.sampling.temperature == 0
