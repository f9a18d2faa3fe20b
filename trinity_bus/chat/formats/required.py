"""What an answer has to look like that must call a tool, as the engine is told it (vLLM's structural tags).

::

    reasoning, where the model has some --> one call of one of the tools, as its format writes it --> the end

A model that speaks otherwise than ``read_...`` of its format reads cannot be told so: that is refused.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from schemas.sampling import StructuredOutputs
from trinity_bus.chat.formats import format_of, read_hermes, read_llama, read_xml
from trinity_bus.chat.messages import ChatError

_THINK, _THOUGHT = "<think>", "</think>"


def required_call(chat_template: str, functions: Sequence[Mapping[str, Any]], *, opened: bool) -> StructuredOutputs:
    """Return what an answer looks like that calls one of these functions; ``opened``: its prompt ends in reasoning.

    Raises:
        ChatError: The model's format has no such description.
    """
    call: dict[str, Any] = {"type": "or", "elements": [_tag(chat_template, one) for one in functions]}
    begin = "" if opened else _THINK
    thought = {"type": "tag", "begin": begin, "content": {"type": "any_text"}, "end": f"{_THOUGHT}\n\n"}
    thinking = {"type": "sequence", "elements": [thought, call]}
    if opened:
        call = thinking
    elif _THINK in chat_template:
        call = {"type": "or", "elements": [call, thinking]}
    return StructuredOutputs(structural_tag=json.dumps({"type": "structural_tag", "format": call}))


def _tag(chat_template: str, function: Mapping[str, Any]) -> dict[str, Any]:
    name, read = json.dumps(function["name"]), format_of(chat_template)
    content: dict[str, Any] = {"type": "json_schema", "json_schema": function.get("parameters", {"type": "object"})}
    if read is read_hermes:
        begin, end = f'<tool_call>\n{{"name": {name}, "arguments": ', "}\n</tool_call>"
    elif read is read_llama:
        begin, end = f'{{"name": {name}, "parameters": ', "}"
    elif read is read_xml:
        begin, end = f"<tool_call>\n<function={function['name']}>\n", "\n</function>\n</tool_call>"
        content["style"] = "qwen_xml"
    else:
        raise ChatError("a call cannot be required of this model, whose chat template writes none that is known")
    return {"type": "tag", "begin": begin, "content": content, "end": end}
