import math
from collections.abc import Sequence

import numpy as np

from schemas import ExperienceGroup, Rollout, build_group
from trinity_bus.chat.formats import Format, read_hermes
from trinity_bus.console.index.group_rows import Texts, Tokens
from trinity_bus.console.web.rollouts import MAX_PIECES, PromptPiece, TurnView, prompt_pieces, token_views, turns


def group_of(
    tokens: list[int], prompt: int, logprobs: Sequence[float], mask: Sequence[bool], **more: object
) -> ExperienceGroup:
    sample = Rollout(
        prompt_token_ids=tokens[:prompt], response_token_ids=tokens[prompt:], logprobs=logprobs, mask=mask, reward=1.0,
        **more,  # type: ignore[arg-type]
    )  # fmt: skip
    ids = {"batch_id": "b", "workflow": "math", "model": "m", "explorer": "e", "incarnation": "i"}
    return build_group([sample], task_id="t", attempt=1, batch_type="train", **ids)  # type: ignore[arg-type]


def turns_of(
    response: list[int], mask: list[bool], texts: Texts | None, *, read: Format | None = None, **more: object
) -> list[TurnView]:
    (sample,) = group_of([9, *response], 1, [-1.0] * len(response), mask, **more).samples()
    return turns(sample, texts, read)


def test_each_token_says_what_drew_it_whether_it_counts_and_what_a_trainer_has_told() -> None:
    logprobs, versions = [math.log(0.95), 0.0, math.log(0.0001)], [(0, 3), (2, 4)]
    group = group_of([5, 6, 7, 8], 1, logprobs, [True, False, True], versions=versions, turn_starts=[0, 2])
    others = np.array([-0.1, -0.3, -0.2])
    prompt, drawn, told, last = token_views(group, 0, others=others, texts=lambda ids: [f"<{one}>" for (one,) in ids])
    assert prompt == ("<5>", 5, "t prompt", "token 0, id 5, prompt")
    assert (drawn.text, drawn.classes) == ("<6>", "t lp0 v3 gap1")
    assert drawn.title.endswith("(p = 0.95), trained on, drawn by version 3, teacher -0.049, turn 1 begins")
    assert told[2:] == ("t off v3", "token 2, id 7, masked: not the model's own, drawn by version 3")
    assert last.classes == "t lp7 v4 gap7 turn"
    assert "teacher +9.0" in last.title
    group = group_of([5, 6, 7], 1, [-1.0, -2.0], [True, False])
    others, entropies = np.array([-1.5, -2.0]), np.array([0.0, 3.0])
    prompt, sure, unsure = token_views(group, 0, others=others, other="trainer", entropies=entropies)
    assert "entropy" not in prompt.title
    assert sure.classes == "t lp3 gap4 en0"
    assert "trainer -0.500, entropy 0.000" in sure.title
    assert unsure.classes == "t off en6", "nobody drew it"


def test_a_page_has_so_many_tokens_and_turns() -> None:
    views = token_views(group_of([1] * 10_000, 10, [-1.0] * 9_990, [True] * 9_990), 0, first=4_000)
    assert (len(views), views[0].text, views[0].title.split(",")[0]) == (4_000, "", "token 4000")
    found = turns_of(list(range(10_000)), [i % 2 == 0 for i in range(10_000)], None)
    assert len(found) == 200


def test_what_the_model_said_and_what_it_was_told_are_turns() -> None:
    found = turns_of(
        [1, 2, 3, 4, 5], [True, True, False, True, True], None, turn_starts=[0, 3, 4], turn_rewards=[0.5, math.nan, 1.0]
    )
    assert [(turn.who, turn.text, turn.reward) for turn in found] == [
        ("model", "1 2", 0.5),
        ("told", "3", None),
        ("model", "4", None),
        ("model", "5", 1.0),
    ]
    assert turns_of([], [], None) == []


def test_tools_are_told_apart_from_what_is_said() -> None:
    said = ['I add. <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>', "3", "<tool_call>{", "?"]
    found = turns_of(
        [0, 1, 2, 3], [True, False, True, False], lambda tokens: [said[each[0]] for each in tokens], read=read_hermes
    )
    assert [turn.who for turn in found] == ["model", "told: result of add", "model", "told"]
    assert [(call.name, call.arguments) for call in found[0].calls] == [("add", '{"a": 1}')]
    assert found[0].text == said[0]
    assert "could not be read" in found[2].flaws[0]


def test_what_the_template_has_put_into_a_prompt_is_told_from_the_rest() -> None:
    def texts(tokens: Sequence[Tokens]) -> list[str]:
        return ["".join(map(chr, each)) for each in tokens]

    found = prompt_pieces([1, 97, 98, 2, 3, 99], texts, {1, 2, 3})
    assert found == [
        PromptPiece("\x01", special=True),
        PromptPiece("ab", special=False),
        PromptPiece("\x02\x03", special=True),
        PromptPiece("c", special=False),
    ]
    assert prompt_pieces([], texts, {1}) == []
    long = prompt_pieces([1, 97] * MAX_PIECES, texts, {1})
    assert len(long) == MAX_PIECES + 1
    assert sum(len(piece.text) for piece in long) == 2 * MAX_PIECES
