import copy
from typing import Any

import pytest

from schemas import Demonstration, Preference
from tests.support.chat.models import END, FAMILIES, RENDERED, tokenizer_of
from tests.unit.chat.test_histories import TOOLS
from trinity_bus.chat import ChatError, Completion, ExampleWriter, Session, renderer_for

ASK = {"role": "user", "content": "What is 6 times 7?"}
MORE = {"role": "user", "content": "And 7 times 7?"}


def demonstration(**fields: Any) -> Demonstration:
    return Demonstration(example_id="d-1", **fields)


def learned(answer: Any) -> list[int]:
    return [token for token, taught in zip(answer.response, answer.mask, strict=True) if taught]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_and_its_answer_are_never_merged(family: str) -> None:
    tokenizer = tokenizer_of(family)
    (answer,) = ExampleWriter(tokenizer).write(demonstration(prompt="The answer is 4", response="2, and so on."))
    assert answer.prompt == tokenizer.encode("The answer is 4")
    assert answer.response == [*tokenizer.encode("2, and so on.", add_special_tokens=False), tokenizer.eos_token_id]
    assert all(answer.mask)


@pytest.mark.parametrize(("family", "name"), RENDERED)
def test_a_conversation_is_what_a_session_would_have_made_of_it(family: str, name: str) -> None:
    """The reference: the same turns drawn by an engine, with all that is told to the model in between."""
    tokenizer = tokenizer_of(family, name)
    says = [{"role": "assistant", "content": text} for text in ("42", "49, so it goes")]
    (answer,) = ExampleWriter(tokenizer).write(demonstration(messages=[ASK, says[0], MORE, says[1]]))

    session, renderer = Session(renderer_for(tokenizer)), renderer_for(tokenizer)
    history: list[dict[str, Any]] = [ASK]
    drawn = []
    for said, then in zip(says, ([MORE], []), strict=True):
        turn = renderer.turn(said, None)
        ids = turn[: len(turn) - turn[::-1].index(tokenizer.convert_tokens_to_ids(END[family]))]
        told = session.add(session.prompt(history), Completion(ids, [-1.0] * len(ids), "stop", [(0, 0)]))
        assert told.content == said["content"]
        drawn += ids
        history += [told.message, *then]
    (sample,) = session.samples
    assert answer.prompt == sample.prompt_token_ids == renderer.prompt([ASK], None)
    assert answer.response == sample.response_token_ids
    assert answer.mask == sample.mask
    assert learned(answer) == drawn
    # Against the template itself: the same text, but for what stands after the last turn's end.
    text = tokenizer.decode([*answer.prompt, *answer.response])
    assert text.endswith(f"49, so it goes{END[family]}")
    assert text.count(END[family]) >= 2


@pytest.mark.parametrize("family", FAMILIES)
def test_tool_calls_are_learned_and_their_results_are_not(family: str) -> None:
    tokenizer = tokenizer_of(family)
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
    messages = [
        ASK,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "name": "add", "content": "three"},
        {"role": "assistant", "content": "3"},
    ]
    (answer,) = ExampleWriter(tokenizer).write(demonstration(messages=messages, tools=TOOLS))
    taught = tokenizer.decode(learned(answer))
    assert '"name": "add"' in taught
    assert '"a": 1' in taught
    assert "three" not in taught
    assert "three" in tokenizer.decode(answer.response)


def test_the_answers_of_a_preference_stand_after_the_same_prompt() -> None:
    writer = ExampleWriter(tokenizer_of("qwen25"))
    chosen, rejected = writer.write(Preference(example_id="p-1", messages=[ASK], chosen="42", rejected="41"))
    assert chosen.prompt == rejected.prompt
    assert (
        chosen.response[-1:] == rejected.response[-1:] == [tokenizer_of("qwen25").convert_tokens_to_ids("<|im_end|>")]
    )
    assert chosen.response != rejected.response


class Untemplated:
    """Of a model that has no chat template and no token that ends a response."""

    chat_template = None
    all_special_ids: tuple[int, ...] = ()
    eos_token_id = None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [ord(c) for c in text if c != "~"]


@pytest.mark.parametrize(
    ("example", "why"),
    [
        (demonstration(messages=[ASK], response="42"), "no chat template"),
        (demonstration(prompt="~", response="42"), "without a single token"),
        (demonstration(prompt="6 * 7", response="~"), "without a single token"),
        (demonstration(messages=[{"role": "assistant", "content": "42"}]), "nothing that it answers"),
        (Preference(example_id="p", prompt="?", chosen="a", rejected="a~"), "are the same tokens"),
    ],
)
def test_what_cannot_be_written_is_refused(example: Demonstration | Preference, why: str) -> None:
    tokenizer: Any = tokenizer_of("qwen25") if why == "nothing that it answers" else Untemplated()
    with pytest.raises(ChatError, match=why):
        ExampleWriter(tokenizer).write(example)


def test_a_response_ends_where_the_model_has_a_token_for_that() -> None:
    (answer,) = ExampleWriter(Untemplated()).write(demonstration(prompt="6 * 7", response="42"))  # type: ignore[arg-type]  # all that is used
    assert answer.response == [ord("4"), ord("2")]
    # One that has its end already gets no second one.
    tokenizer = tokenizer_of("qwen25")
    (ended,) = ExampleWriter(tokenizer).write(demonstration(prompt="6 * 7", response="42<|im_end|>"))
    assert ended.response.count(tokenizer.eos_token_id) == 1


OPENING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content.split('</think>')[-1] if m.role == 'assistant' else m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
"""As those of models that always think: the prompt opens reasoning, and history is written without."""


@pytest.mark.parametrize(
    ("answer", "drawn"),
    [
        ({"content": "four"}, "\n</think>\n\nfour<|im_end|>"),
        ({"content": "four", "reasoning_content": "2+2"}, "2+2\n</think>\n\nfour<|im_end|>"),
        ({"content": "<think>\n2+2\n</think>\n\nfour"}, "2+2\n</think>\n\nfour<|im_end|>"),
    ],
)
def test_a_turn_begins_in_the_reasoning_that_its_prompt_has_opened(answer: dict[str, Any], drawn: str) -> None:
    tokenizer = copy.copy(tokenizer_of("qwen3"))
    tokenizer.chat_template = OPENING
    said = {"role": "assistant", **answer}
    (one,) = ExampleWriter(tokenizer).write(demonstration(messages=[ASK, said, MORE, said]))
    assert tokenizer.decode(one.prompt).endswith("<|im_start|>assistant\n<think>\n")
    assert tokenizer.decode(learned(one)) == drawn * 2
    session = Session(renderer_for(tokenizer))
    told = session.add(session.prompt([ASK]), Completion(tokenizer.encode(drawn), [], "stop", []))
    assert (told.content, told.reasoning) == ("four", "2+2" if "2+2" in drawn else "")
