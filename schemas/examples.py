"""Examples to learn from that no model of the mesh has drawn: demonstrations and preferences.

Anyone who may send tasks writes them, as msgpack or JSON, and the trainer that is told to trains on them. They are
text; the trainer's tokenizer makes tokens of them. Their order in the log is their order: one partition each.
"""

from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field, model_validator

from schemas.message import MAX_MESSAGES, MAX_PROMPT_CHARS, MAX_TOOLS, Message, Tool, few_items
from schemas.record import Identifier, Record

MAX_WEIGHT = 1e6

type _Text = Annotated[str, Field(min_length=1, max_length=MAX_PROMPT_CHARS)]


class _Example(Record):
    """What both have in common: exactly one of ``prompt`` and ``messages``, as tasks have them."""

    SCHEMA: ClassVar[str] = "example"
    JSON: ClassVar[bool] = True
    MAX_BYTES: ClassVar[int] = 4 << 20

    example_id: Identifier  # unlike that of every other one of its kind; its key
    prompt: _Text | None = None
    # what was said before, for a model with a chat template
    messages: (
        Annotated[list[Message], BeforeValidator(few_items), Field(min_length=1, max_length=MAX_MESSAGES)] | None
    ) = None
    # that the model may call, for its chat template
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    # how much it counts in the loss, as a share of another's 1
    weight: Annotated[float, Field(ge=0, le=MAX_WEIGHT)] = 1.0

    @model_validator(mode="after")
    def _has_one_beginning(self) -> "_Example":
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("it needs exactly one of prompt and messages")
        if self.tools is not None and self.messages is None:
            raise ValueError("tools are for messages; a prompt has none")
        return self


class Demonstration(_Example):
    """How a prompt is to be answered. Produced by anyone to ``demonstrations``, keyed by ``example_id``."""

    SCHEMA: ClassVar[str] = "demonstration"

    response: _Text | None = None
    """What is to be answered. None where the messages hold the answers: each turn of an assistant is learned from."""

    @model_validator(mode="after")
    def _has_an_answer(self) -> "Demonstration":
        if self.response is None and (self.messages is None or self.messages[-1].role != "assistant"):
            raise ValueError("it needs a response, or messages of which the last is an assistant's")
        return self


class Preference(_Example):
    """Which of two answers to a prompt is the better one. Produced by anyone to ``preferences``, by ``example_id``."""

    SCHEMA: ClassVar[str] = "preference"

    chosen: _Text
    rejected: _Text

    @model_validator(mode="after")
    def _differ(self) -> "Preference":
        if self.chosen == self.rejected:
            raise ValueError("chosen and rejected are the same")
        return self
