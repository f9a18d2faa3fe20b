import copy
import dataclasses
from typing import Any

import numpy as np
import pytest

from schemas import Sampling
from schemas.groups.kept import decode_kept
from tests.support.chat.models import END, FAMILIES, RENDERED, tokenizer_of
from tests.support.fakes.experiences import kept_of
from tests.unit.chat.test_histories import TOOLS
from trinity_bus.chat import ChatError, Completion, Session, renderer_for

USER = {"role": "user", "content": "What is 1 + 2?"}
MORE = {"role": "user", "content": "And 2 + 2?"}


class Talk:
    """A session and what its model draws."""

    def __init__(self, family: str = "qwen3", **options: Any) -> None:
        self.family = family
        self.tokenizer = tokenizer_of(family)
        self.session = Session(renderer_for(self.tokenizer, **options))

    def drawn(self, text: str, *, ended: bool = True, version: int = 1) -> Completion:
        ids = self.tokenizer.encode(text + END[self.family] * ended, add_special_tokens=False)
        return Completion(ids, [-1.0] * len(ids), "stop" if ended else "length", [(0, version)])

    def say(self, messages: list[Any], text: str, tools: Any = None, **how: Any) -> Any:
        return self.session.add(self.session.prompt(messages, tools), self.drawn(text, **how))

    def text(self, token_ids: list[int]) -> str:
        return str(self.tokenizer.decode(token_ids))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("ended", [True, False])
def test_what_follows_is_what_the_template_writes(family: str, ended: bool) -> None:
    talk = Talk(family)
    said = talk.say([USER], "The answer is 3", ended=ended)
    history = [USER, said.message, MORE]
    token_ids = talk.session.prompt(history).token_ids
    # As text it is the template's own: nothing is missing, and nothing is there twice.
    whole = talk.tokenizer.apply_chat_template(history, tokenize=False, add_generation_prompt=True)
    assert talk.text(token_ids) == whole


@pytest.mark.parametrize(("family", "name"), RENDERED)
def test_a_turn_that_was_begun_is_gone_on_with_and_continued(family: str, name: str) -> None:
    tokenizer = tokenizer_of(family, name)
    session = Session(renderer_for(tokenizer))
    prompt = session.prompt([USER], None, None, "The answer <|im_end|> is")
    before = session.prompt([USER]).token_ids
    assert prompt.token_ids[: len(before)] == before
    # A mark in it is text.
    assert tokenizer.decode(prompt.token_ids[len(before) :]) == "The answer <|im_end|> is"
    assert not set(tokenizer.all_special_ids) & set(prompt.token_ids[len(before) :])
    ids = tokenizer.encode(f" 3{END[family]}", add_special_tokens=False)
    said = session.add(prompt, Completion(ids, [-1.0] * len(ids), "stop", [(0, 1)]))
    assert said.content == " 3"
    history = [USER, {"role": "assistant", "content": "The answer <|im_end|> is 3"}, MORE]
    following = session.prompt(history).token_ids
    assert following[: len(prompt.token_ids) + len(ids)] == [*prompt.token_ids, *ids]
    session.add(session.prompt(history), Completion(ids, [-1.0] * len(ids), "stop", [(0, 1)]))
    (sample,) = session.samples
    assert (sum(sample.mask), len(sample.turn_starts)) == (2 * len(ids), 2)


def test_a_turn_cannot_be_begun_where_its_prompt_opens_reasoning() -> None:
    tokenizer = copy.deepcopy(tokenizer_of("qwen3"))
    tokenizer.chat_template = "{{ messages[0].content }}<think>\n"
    with pytest.raises(ChatError, match="begin with reasoning"):
        Session(renderer_for(tokenizer)).prompt([USER], None, None, "The answer")


@pytest.mark.parametrize("family", FAMILIES)
def test_tools_are_called_and_answer(family: str) -> None:
    talk = Talk(family)
    written = {"llama3": '{"name": "add", "parameters": {"a": 1, "b": 2}}'}.get(
        family, '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
    )
    said = talk.say([USER], written, TOOLS)
    (call,) = said.tool_calls
    assert (call.id, call.name, call.arguments) == ("call00000", "add", {"a": 1, "b": 2})
    history = [USER, said.message, {"role": "tool", "tool_call_id": call.id, "content": "three"}]
    prompt = talk.session.prompt(history, TOOLS)
    calling = {**said.message, "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1, "b": 2}}}]}
    assert talk.text(prompt.token_ids) == talk.tokenizer.apply_chat_template(
        [USER, calling, history[2]], tools=TOOLS, tokenize=False, add_generation_prompt=True
    )
    talk.session.add(prompt, talk.drawn("3"))
    (sample,) = talk.session.samples
    assert len(sample.turn_starts) == 2
    assert sum(sample.mask) == len(talk.drawn(written).token_ids) + len(talk.drawn("3").token_ids)


def test_reasoning_and_what_has_stopped_a_turn_stay_where_they_were_drawn() -> None:
    talk = Talk("qwen3")
    drawn = talk.drawn("<think>\nLet me think\n</think>\n\nThe answer is 3STOP", ended=False)
    said = talk.session.add(talk.session.prompt([USER]), drawn, ["STOP"])
    assert (said.reasoning, said.content) == ("Let me think", "The answer is 3")
    back = {"role": "assistant", "content": said.content}
    talk.say([USER, back, MORE], "4")
    (sample,) = talk.session.samples
    assert "Let me think" in talk.text(sample.response_token_ids)
    assert "3STOP" in talk.text(sample.response_token_ids)
    assert (talk.session.rewrites, talk.session.branches) == (0, 0)


def test_a_turn_may_end_in_a_mark_that_only_the_added_tokens_name() -> None:
    """Llama 3 ends a tool call in another mark than a turn; its tokenizer names one end."""
    talk = Talk("llama3")
    end = talk.tokenizer.convert_tokens_to_ids("<|eom_id|>")
    assert end not in talk.tokenizer.all_special_ids
    prompt = talk.session.prompt([USER], TOOLS)
    drawn = talk.drawn('{"name": "add", "parameters": {"a": 1, "b": 2}}<|eom_id|>', ended=False)
    said = talk.session.add(prompt, dataclasses.replace(drawn, finish_reason="stop"))
    assert (said.content, said.flaws, len(said.tool_calls)) == ("", (), 1)
    speech = talk.session.speech(talk.session.prompt([USER]))
    assert speech.hear([*talk.tokenizer.encode("3", add_special_tokens=False), end]) == "3"
    # What follows ends the turn no second time.
    following = talk.session.prompt([USER, said.message, MORE], TOOLS).token_ids[len(prompt.token_ids) :]
    assert talk.text(following).count(END["llama3"]) == 1


def test_an_option_of_the_template_is_its_own_at_every_turn() -> None:
    talk = Talk("qwen3", enable_thinking=False)
    said = talk.say([USER], "3")
    prompt = talk.session.prompt([USER, said.message, MORE])
    assert talk.text(prompt.token_ids).count("<think>\n\n</think>") == 2


@pytest.mark.parametrize(
    "change",
    [
        {"content": None},
        {"content": [{"type": "text", "text": ""}]},
        {"content": " \n"},
        {"refusal": None, "annotations": [], "audio": None},
        {"tool_calls": [{"id": "other", "function": {"name": "add", "arguments": '{ "b":2,"a": 1}'}}]},
    ],
)
def test_what_clients_change_and_means_nothing_is_a_continuation(change: dict[str, Any]) -> None:
    talk = Talk("qwen3")
    said = talk.say([USER], '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>', TOOLS)
    talk.say([USER, {**said.message, **change}, {"role": "tool", "content": "3"}], "3", TOOLS)
    assert len(talk.session.samples) == 1


@pytest.mark.parametrize(
    ("first", "then", "tools"),
    [
        ([USER], lambda said: [USER, {**said, "content": "another"}, MORE], None),
        ([USER], lambda said: [MORE, said, MORE], None),
        ([USER], lambda said: [{"role": "system", "content": "Be brief."}, USER, said, MORE], None),
        ([USER], lambda said: [{"role": "user", "content": f"So far: {said['content']}"}], None),
        ([USER], lambda said: [USER, said, MORE], TOOLS),
    ],
    ids=["answer", "question", "system prompt", "compaction", "tools"],
)
def test_a_rewritten_history_begins_a_sample_and_is_counted(first: Any, then: Any, tools: Any) -> None:
    talk = Talk()
    said = talk.say(first, "3")
    talk.say(then(said.message), "4", tools)
    assert (len(talk.session.samples), talk.session.rewrites, talk.session.branches) == (2, 1, 0)


def test_branches_share_their_beginning_and_train_it_once() -> None:
    talk = Talk()
    said = talk.say([USER], "3")
    prompt = talk.session.prompt([USER, said.message, MORE])
    for text in ("4", "5"):
        talk.session.add(prompt, talk.drawn(text))
    one, other = talk.session.samples
    assert (talk.session.branches, talk.session.rewrites) == (1, 0)
    assert other.prompt_token_ids == prompt.token_ids
    assert other.response_token_ids == talk.drawn("5").token_ids
    assert sum(one.mask) == len(talk.drawn("3").token_ids) + len(talk.drawn("4").token_ids)
    # And each goes on by itself.
    talk.say([USER, said.message, MORE, {"role": "assistant", "content": "5"}, USER], "6")
    assert [len(sample.turn_starts) for sample in talk.session.samples] == [2, 2]


def test_routes_are_those_with_which_each_token_was_first_run() -> None:
    talk = Talk()

    def said(messages: list[Any], expert: int | None) -> Any:
        prompt, drawn = talk.session.prompt(messages), talk.drawn("3")
        tokens = len(prompt.token_ids) + len(drawn.token_ids)
        routes = None if expert is None else np.full((tokens - 1, 1, 1), expert, np.uint8)
        return talk.session.add(prompt, dataclasses.replace(drawn, routes=routes)), tokens

    one, first = said([USER], 1)
    two, second = said([USER, one.message, MORE], 2)
    (sample,) = talk.session.samples
    assert sample.rollout(reward=1.0, metrics={}).routes is sample.routes
    assert sample.routes is not None
    assert sample.routes.ravel().tolist() == [1] * (first - 1) + [2] * (second - first)
    # A turn that comes from an earlier attempt has none; the next one tells those of all tokens before it.
    three, _ = said([USER, one.message, MORE, two.message, MORE], None)
    assert sample.routes is None
    _, last = said([USER, one.message, MORE, two.message, MORE, three.message, MORE], 4)
    assert sample.routes.ravel().tolist() == [4] * (last - 1)


def test_what_each_turn_was_drawn_from_is_told_where_its_tokens_are() -> None:
    talk = Talk()

    def said(messages: list[Any], *, told: bool) -> Any:
        drawn = talk.drawn("3")
        kept = bytearray(kept_of(*([token, 9999] for token in drawn.token_ids))) if told else None
        return talk.session.add(talk.session.prompt(messages), dataclasses.replace(drawn, kept=kept))

    one = said([USER], told=False)
    two = said([USER, one.message, MORE], told=True)
    said([USER, one.message, MORE, two.message, MORE], told=False)
    (sample,) = talk.session.samples
    turn = sample.turn_starts[1]
    assert sample.kept is not None
    counts, ids = decode_kept(sample.kept, len(sample.response_token_ids))
    drawn = talk.drawn("3").token_ids
    assert np.flatnonzero(counts).tolist() == list(range(turn, turn + len(drawn)))
    assert ids.tolist() == [token for each in drawn for token in sorted([each, 9999])]
    assert sample.rollout(reward=1.0, metrics={}).kept is sample.kept


@pytest.mark.parametrize(
    ("first", "then", "samples"),
    [
        ({"top_p": 0.9}, {}, 2),
        ({}, {"top_k": 5}, 2),
        ({"min_p": 0.1}, {"min_p": 0.2}, 2),
        ({"top_p": 0.9}, None, 2),
        (None, {"top_p": 0.9}, 2),
        ({"top_p": 0.9}, {"top_p": 0.9, "max_tokens": 7}, 1),
        ({"top_p": 1.0, "top_k": -1, "min_p": 0.0}, {}, 1),
    ],
    ids=str,
)
def test_turns_with_other_limits_are_other_samples(
    first: dict[str, Any] | None, then: dict[str, Any] | None, samples: int
) -> None:
    talk = Talk()

    def said(messages: list[Any], how: dict[str, Any] | None) -> Any:
        drawn = talk.drawn("3")
        if how and how.get("top_p") != 1.0:
            drawn.kept = bytearray(kept_of(*([token, 9999] for token in drawn.token_ids)))
        sampling = None if how is None else Sampling(temperature=1.0, **how)
        return talk.session.add(talk.session.prompt(messages), drawn, sampling=sampling)

    said([USER, said([USER], first).message, MORE], then)
    found = talk.session.samples
    assert len(found) == samples
    assert talk.session.branches == samples - 1
    for sample, how in zip(found, (first, then), strict=False):
        assert sample.sampling == (None if how is None else Sampling(temperature=1.0, **how))
        # Each was drawn as it says: no turn without sets stands in a sample of turns with them.
        counts = None if sample.kept is None else decode_kept(sample.kept, len(sample.mask)).counts
        assert counts is None or (counts[sample.mask] == 2).all()


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([], "at least one message"),
        ([{"content": "a"}], "without a role"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}], "only parts of text.*image_url"),
        ([{"role": "user", "content": 3}], "content is text"),
        ([{"role": "user", "content": "\ud800"}], "half a character"),
        ([USER, {"role": "assistant", "tool_calls": [{"id": "x"}]}], "without a function's name"),
    ],
)
def test_what_cannot_be_written_is_refused_and_changes_nothing(messages: Any, why: str) -> None:
    talk = Talk()
    with pytest.raises(ChatError, match=why):
        talk.session.prompt(messages)
    assert talk.session.samples == []


def test_what_a_template_raises_is_said_and_arguments_that_cannot_be_read_are_as_they_stand() -> None:
    talk = Talk("llama3")
    calls = [{"type": "function", "function": {"name": "add", "arguments": "{}"}}] * 2
    with pytest.raises(ChatError, match="only supports single tool-calls"):
        talk.session.prompt([USER, {"role": "assistant", "content": "", "tool_calls": calls}, USER])
    talk = Talk("qwen3")
    for arguments in ("{so", "[" * 100_000):
        call = {"id": "x", "type": "function", "function": {"name": "add", "arguments": arguments}}
        prompt = talk.session.prompt([USER, {"role": "assistant", "content": "", "tool_calls": [call]}, MORE])
        assert arguments in talk.text(prompt.token_ids)
