from pathlib import Path
from typing import Any

import pytest

from tests.support.chat.models import PACKAGED as NAME
from tests.support.chat.models import tokenizer_of
from tests.unit.chat.test_histories import TOOLS
from trinity_bus.chat import ChatError, Completion, Session, TemplateRenderer, renderer_for
from trinity_bus.chat.encoding import Encoder, Writing
from trinity_bus.chat.packaged import PackagedRenderer

USER = {"role": "user", "content": "What is 1 + 2?"}


def test_it_is_taken_for_a_name_that_the_package_knows_and_no_other(tmp_path: Path) -> None:
    assert isinstance(renderer_for(tokenizer_of("qwen3", NAME)), PackagedRenderer)
    assert isinstance(renderer_for(tokenizer_of("qwen3", "someone/else")), TemplateRenderer)
    assert isinstance(renderer_for(Encoder(tokenizer_of("qwen3"), Writing(renderer="qwen3"))), PackagedRenderer)
    with pytest.raises(ChatError, match="no-such"):
        renderer_for(Encoder(tokenizer_of("qwen3"), Writing(renderer="no-such")))
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


@pytest.mark.parametrize(("name", "tools"), [("", None), ("", TOOLS), (NAME, None)])
@pytest.mark.parametrize("options", [{}, {"enable_thinking": False}], ids=["thinking", "no thinking"])
def test_first_prompts_are_the_templates(name: str, tools: Any, options: dict[str, Any]) -> None:
    tokenizer = tokenizer_of("qwen3", name)
    for messages in ([USER], [{"role": "system", "content": "Be brief."}, USER]):
        whole = tokenizer.apply_chat_template(
            messages, tools=tools, add_generation_prompt=True, tokenize=True, return_dict=False, **options
        )
        assert renderer_for(tokenizer, **options).prompt(messages, tools) == whole
