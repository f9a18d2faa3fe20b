"""A model that the package ``renderers`` knows: its renderer is taken, and keeps the same rule."""

from pathlib import Path

import pytest

from tests.support.chat.models import tokenizer_of
from tests.unit.chat.test_histories import TOOLS
from trinity_bus.chat import ChatError, Completion, Session, TemplateRenderer, renderer_for
from trinity_bus.chat.packaged import PackagedRenderer

NAME = "Qwen/Qwen3-0.6B"
USER = {"role": "user", "content": "What is 1 + 2?"}


def test_it_is_taken_for_a_name_that_the_package_knows_and_no_other(tmp_path: Path) -> None:
    assert isinstance(renderer_for(tokenizer_of("qwen3", NAME)), PackagedRenderer)
    assert isinstance(renderer_for(tokenizer_of("qwen3", "someone/else")), TemplateRenderer)
    # A folder may hold anything.
    assert isinstance(renderer_for(tokenizer_of("qwen3", str(tmp_path))), TemplateRenderer)


def test_reasoning_and_tool_calls_are_kept_as_they_were_drawn() -> None:
    tokenizer = tokenizer_of("qwen3", NAME)
    session = Session(renderer_for(tokenizer))
    written = (
        '<think>\nso\n</think>\n\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call><|im_end|>'
    )
    ids = tokenizer.encode(written)
    said = session.add(session.prompt([USER], TOOLS), Completion(ids, [-1.0] * len(ids), "stop", [(0, 1)]))
    assert [(call.name, call.arguments) for call in said.tool_calls] == [("add", {"a": 1, "b": 2})]
    assert (said.reasoning or "").strip() == "so"
    history = [USER, said.message, {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": "three"}]
    prompt = session.prompt(history, TOOLS)
    session.add(prompt, Completion(ids, [-1.0] * len(ids), "stop", [(0, 1)]))
    (sample,) = session.samples
    assert sample.response_token_ids[: len(ids)] == ids
    text = tokenizer.decode(prompt.token_ids)
    assert text.endswith(
        "</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\nthree\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    # Another question takes nothing back.
    assert session.prompt([*history, {"role": "assistant", "content": "3"}, USER], TOOLS) is not None


def test_an_option_that_the_model_has_not_is_refused() -> None:
    with pytest.raises(ChatError, match="no_such_option"):
        renderer_for(tokenizer_of("qwen3", NAME), no_such_option=True)
    prompt = renderer_for(tokenizer_of("qwen3", NAME), enable_thinking=False).prompt([USER], None)
    assert tokenizer_of("qwen3").decode(prompt).endswith("<think>\n\n</think>\n\n")
