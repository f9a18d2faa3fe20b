from typing import Any

import pytest

from trinity_bus.chat import ChatError, Session, renderer_for
from trinity_bus.chat.openai import read_request
from trinity_bus.chat.rendering import MAX_OPTION_CHARS, MAX_OPTIONS, read_options
from trinity_bus.testing import CharacterTokenizer, ScriptedEngine

USER = {"role": "user", "content": "Why?"}


class Thinking(CharacterTokenizer):
    """Says what options its template is given."""

    def __init__(self, **options: Any) -> None:
        self.chat_template_options = options

    def apply_chat_template(self, *given: Any, tokenize: bool, **how: Any) -> Any:
        text = super().apply_chat_template(*given, tokenize=False, **how)
        text += "<think>" if how.get("thinks", True) else ""
        return self.encode(text) if tokenize else text


async def test_a_request_may_have_others_than_all_have_and_goes_on_with_what_was_drawn() -> None:
    tokenizer = Thinking(thinks=False)
    session, engine = Session(renderer_for(tokenizer)), ScriptedEngine(["So.", "So</think>It is.", "Yes."])
    history: list[Any] = [USER]
    prompts = []
    asked: list[dict[str, Any]] = [{}, {"thinks": True, "tokenizer": "x"}, {}]
    for options in asked:
        prompt = session.prompt(history, options=options)
        (drawn,) = await engine.generate(prompt.token_ids, read_request(b"{}", None).sampling, 1, None)
        said = session.add(prompt, drawn)
        prompts.append(tokenizer.decode(prompt.token_ids))
        history += [said.message, USER]
    assert [one.endswith("<think>") for one in prompts] == [False, True, False]
    # Reasoning that was opened by the prompt is read as such, in what is said and in what is streamed.
    assert history[3] == {"role": "assistant", "content": "It is.", "reasoning_content": "So"}
    assert prompts[2].startswith(prompts[1] + "So</think>It is.")
    assert (len(session.samples), session.rewrites) == (1, 0)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ([], "are an object"),
        ({str(i): 1 for i in range(MAX_OPTIONS + 1)}, "at most 32"),
        ({"chat_template": "{{ 1 }}"}, "'chat_template' is no option"),
        ({"tokenize": False}, "is no option"),
        ({"no name": 1}, "has a name"),
        ({"thinks": {}}, "is a number, true"),
        ({"thinks": "x" * (MAX_OPTION_CHARS + 1)}, "is a number, true"),
        ({"x" * (MAX_OPTION_CHARS + 1): 1}, "has a name"),
    ],
)
def test_what_is_no_option_is_refused(options: Any, why: str) -> None:
    with pytest.raises(ChatError, match=why):
        read_options(options)


def test_a_request_says_them_as_vllm_has_them() -> None:
    assert read_request(b'{"chat_template_kwargs": {"enable_thinking": false}}', None).options == {
        "enable_thinking": False
    }
    with pytest.raises(ChatError, match="is no option"):
        read_request(b'{"chat_template_kwargs": {"chat_template": "x"}}', None)
