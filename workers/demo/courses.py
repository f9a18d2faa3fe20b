"""What a demo teaches: a language, tasks in it, and the figures of their training.

========  ==========================================================  ===============================================
course    what the model is to do                                     what it is rewarded for
========  ==========================================================  ===============================================
copy      say three digits again                                      each word in its place (``sequence``)
tools     ask a tool what is in a drawer, then say what it was told   the call, its digits, the answer (``drawers``)
========  ==========================================================  ===============================================

A course brings its tasks as JSON lines in ``tasks``: some to learn from, others to be tested with, no prompt in both.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from workers.demo.drawers import CALL
from workers.demo.model import DIGITS, Language

_TEMPLATE: Final = (
    "{{ bos_token }}{% for message in messages %} <{{ message.role }}>"
    "{% if message.content %} {{ message.content }}{% endif %}"
    "{% for call in message.tool_calls or [] %} <tool_call><function={{ call.function.name }}>"
    "{% for name, value in call.function.arguments.items() %}<parameter={{ name }}> {{ value }} </parameter>"
    "{% endfor %}</function></tool_call>{% endfor %}"
    "{% if message.role == 'assistant' %} {{ eos_token }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %} <assistant>{% endif %}"
)
"""Schemas of tools are left out: a model that knows no word cannot read them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """One demo."""

    name: str
    summary: str
    """What the model learns, after "teach a tiny model to"."""
    language: Language
    tasks: str
    """What the names of the files of its tasks begin with."""
    max_tokens: int
    """Of a response."""
    batch_size: int = 64
    """Tasks a step."""
    group_size: int = 16
    """Samples a task."""
    max_steps: int = 60
    """In which the model usually learns, with some to spare."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """Of its own, beside those of all demos."""
    try_it: str
    """A command that asks the trained model, with places for ``program`` and ``model``."""


COPY: Final = Course(
    name="copy",
    summary="copy what it is told",
    language=DIGITS,
    tasks="",
    # Three digits and the end.
    max_tokens=4,
    try_it='{program} ask "copy 3 1 4 =" --model {model}',
)

TOOLS: Final = Course(
    name="tools",
    summary="call a tool and to say what the tool has said",
    language=Language(
        # As a tokenizer has them whose model was taught to call tools: what surrounds a call is a token.
        words=(
            *("<user>", "<tool>", "<assistant>", "open"),
            *CALL,
            *"0123456789",
        ),
        chat_template=_TEMPLATE,
        # Calls that cannot be read are answered with sentences.
        max_length=192,
    ),
    tasks="tools_",
    # A call: its beginning, three digits, its end, and the end of the turn.
    max_tokens=6,
    settings={"explorer.workflow_modules": "workers.demo.drawers"},
    try_it="""{program} workflow run workers.demo.drawers --task '{{"prompt": "open 3 1 4"}}' --engine {model}""",
)

COURSES: Final = {course.name: course for course in (COPY, TOOLS)}
