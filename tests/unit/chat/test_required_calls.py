import json
from typing import Any

import pytest
import xgrammar

from tests.support.narrowing import some
from trinity_bus.chat import ChatError
from trinity_bus.chat.formats import format_of, required_call

ADD: dict[str, Any] = {
    "name": "add",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
}
NONE: dict[str, Any] = {"name": "stop"}
END = 256
HERMES = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
WRITTEN = {
    "<tool_call>": HERMES,
    "ipython": '{"name": "add", "parameters": {"a": 1}}',
    "<function=": "<tool_call>\n<function=add>\n<parameter=a>1</parameter>\n</function>\n</tool_call>",
}


def allows(chat_template: str, text: str, *, opened: bool = False) -> bool:
    """Whether a model, here of a token a byte, may say this and no more."""
    shape = some(required_call(chat_template, [ADD, NONE], opened=opened).structural_tag)
    tokens = [bytes([byte]) for byte in range(END)] + [b"<end>"]
    info = xgrammar.TokenizerInfo(tokens, vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[END])
    matcher = xgrammar.GrammarMatcher(xgrammar.GrammarCompiler(info).compile_structural_tag(shape))
    return all(matcher.accept_token(token) for token in [*text.encode(), END])


@pytest.mark.parametrize("chat_template", WRITTEN)
def test_a_call_is_said_and_nothing_else_and_it_can_be_read(chat_template: str) -> None:
    written = WRITTEN[chat_template]
    assert allows(chat_template, written)
    (call,) = format_of(chat_template)(written).calls
    assert (call.name, call.arguments) == ("add", {"a": 1})
    for other in ("", "Hello.", f"Hello. {written}", written.replace("add", "sub"), written.replace("1", "false")):
        assert not allows(chat_template, other)


def test_a_model_that_reasons_may_do_so_before() -> None:
    thought = f"<think>\nHm.\n</think>\n\n{HERMES}"
    assert not allows("<tool_call>", thought)
    assert allows("<tool_call> <think>", thought)
    assert allows("<tool_call> <think>", HERMES)
    assert allows("<tool_call> <think>", thought.removeprefix("<think>"), opened=True)
    # Within reasoning that the prompt has opened it would be no call.
    assert not allows("<tool_call> <think>", HERMES, opened=True)


def test_of_a_model_with_a_format_of_its_own_no_call_can_be_required() -> None:
    for chat_template in ("", "[TOOL_CALLS]"):
        with pytest.raises(ChatError, match="cannot be required"):
            required_call(chat_template, [ADD], opened=False)
    assert json.loads(required_call("ipython", [NONE], opened=False).structural_tag or "")["type"] == "structural_tag"
