from typing import Any

import numpy as np
import pytest

from schemas.sampling import Sampling
from trinity_bus.chat import renderer_for
from trinity_bus.chat.messages import Completion
from trinity_bus.gateway import sessions as session_book
from trinity_bus.gateway.sessions import Dialogue, Sessions, Told, UnknownAnswerError
from trinity_bus.testing import CharacterTokenizer

ASKED: list[dict[str, Any]] = [{"role": "user", "content": "6*7="}]


def sessions(most: int = 10, keep_s: float = 100) -> Sessions:
    return Sessions(renderer_for(CharacterTokenizer()), Sampling(temperature=1.0), most=most, keep_s=keep_s)


def say(here: Sessions, one: Dialogue, answer: str, messages: Any = None, n: int = 1) -> list[Any]:
    """Answers a request; its id is that of the answer."""
    prompt = one.session.prompt(messages or ASKED)
    drawn = Completion([ord("4")], [-0.5], "stop", [(0, 3)])
    said = [one.session.add(prompt, drawn) for _ in range(n)]
    here.answered(one, one.session, answer, [(each.sample, each.turn) for each in said])
    return [*(messages or ASKED), said[0].message, {"role": "user", "content": "Sure?"}]


def test_a_reward_counts_once_and_only_what_has_one_is_contributed() -> None:
    here = sessions()
    say(here, here.open("me", "a", 0, single=True), "a")
    say(here, here.open("me", "b", 0, single=True), "b")
    assert here.feedback("me", ["a", "a"], 1.0) == 1
    assert here.feedback("me", ["a"], 0.0) == 0
    (one,) = here.pending("me")
    assert (one.task_id, [rollout.reward for rollout in one.rollouts]) == ("me/a", [1.0])
    assert one.rollouts[0].sampling == Sampling(temperature=1.0)
    here.settled(one)
    assert here.pending("me") == []
    assert here.feedback("me", ["a"], 1.0) == 0
    assert len(here) == 1


def test_nobody_knows_the_answers_of_others_and_nothing_counts_where_one_is_unknown() -> None:
    here = sessions()
    say(here, here.open("me", "a", 0), "1")
    for ids, session in ((["1"], None), ([], "a")):
        with pytest.raises(UnknownAnswerError):
            here.feedback("you", ids, 1.0, session=session)
    with pytest.raises(UnknownAnswerError):
        here.feedback("me", ["1", "2"], 1.0)
    assert here.pending("me") == []


def test_a_conversation_of_several_turns_is_one_sample_with_the_last_reward_and_each_turn_has_its_own() -> None:
    here = sessions()
    one = here.open("me", "a", 0)
    then = say(here, one, "1")
    say(here, here.open("me", "a", 1), "2", then)
    here.feedback("me", ["1"], 0.25)
    here.feedback("me", ["2"], 1.0)
    ((rollout,),) = [task.rollouts for task in here.pending("me")]
    assert rollout.reward == 1.0
    assert list(rollout.turn_rewards or ()) == [0.25, 1.0]
    here.settled(here.pending("me")[0])
    assert here.open("me", "a", 2).task_id == "me/a/2"
    say(here, one, "3")
    here.feedback("me", [], 1.0, session="a")
    assert [(task.task_id, len(task.rollouts)) for task in here.pending("me")] == [("me/a/2", 1)]


def test_conversations_of_one_task_are_its_runs_and_their_samples_one_group() -> None:
    here = sessions()
    for name in "abc":
        say(here, here.open("me", name, 0), name, n=2)
        here.feedback("me", [name], float(ord(name)), task_id="task")
    say(here, here.open("me", "d", 0), "d")
    here.feedback("me", ["d"], 0.0, task_id="task", run_id=7)
    (task,) = here.pending("me", ["task"])
    assert [rollout.run_id for rollout in task.rollouts] == [0, 0, 1, 1, 2, 2, 7]
    assert here.pending("me", ["another"]) == []


def test_who_is_idle_longest_is_forgotten_and_what_comes_late_is_not_noted() -> None:
    here = sessions(most=2, keep_s=10)
    first = here.open("me", "a", 0)
    say(here, first, "1")
    here.open("me", "b", 1)
    here.open("me", "c", 2)
    assert (len(here), here.forgotten) == (2, 1)
    say(here, first, "2")
    with pytest.raises(UnknownAnswerError):
        here.feedback("me", ["2"], 1.0)
    here.open("me", "d", 12)
    assert len(here) == 2


def test_an_answer_is_stored_while_its_conversation_stores_no_more_than_one_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_book, "MOST_TOLD", 1000)
    here = sessions()
    one = here.open("me", "a", 0)
    for answer in ("1", "2"):
        here.answered(one, one.session, answer, [], Told(None, b" " * 500, whole=b"{}"))
    assert here.continued("me", "1", "a", 0)[0] is one
    with pytest.raises(UnknownAnswerError):
        here.continued("me", "2", "a", 0)


def test_a_chain_goes_on_without_copies_of_its_answers_where_there_is_no_room_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_book, "MOST_TOLD", 2000)
    here = sessions()
    one = here.open("me", "a", 0)
    previous = None
    for answer in ("1", "2", "3"):
        here.answered(one, one.session, answer, [], Told(previous, b"[]", whole=b"{}" * 500))
        previous = answer
    assert one.stored_bytes <= 2000
    for answer, asked in (("1", 1), ("2", 2), ("3", 3)):
        assert len(here.continued("me", answer, "a", 0)[1]) == 2 * asked
    assert here.stored("me", "3", "a")[1].whole == b"{}" * 500
    assert here.stored("me", "2", "a")[1].whole is None
    here.delete("me", "2", "a")
    for ask in (lambda: here.continued("me", "2", "a", 0), lambda: here.stored("me", "2", "a")):
        with pytest.raises(UnknownAnswerError, match="is not known"):
            ask()
    assert len(here.continued("me", "3", "a", 0)[1]) == 6


def test_of_too_many_tokens_the_longest_conversation_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_book, "MOST_TOKENS", 300)
    here = sessions()
    for name, number in (("a", 1), ("b", 3), ("long", 200)):
        say(here, here.open("me", name, 1), name, [{"role": "user", "content": "x" * number}])
    here.open("me", "long", 1)
    assert len(here) == 3
    say(here, here.open("me", "c", 1), "c", [{"role": "user", "content": "x" * 60}])
    here.open("me", "c", 1)
    assert here.missing("me", ["a", "b", "c", "long"]) == ["long"]


def test_of_what_fills_the_memory_with_routes_the_oldest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_book, "MOST_TOKENS", 100)
    for experts, left in ((1, 2), (100, 1)):
        here = sessions()
        for number, name in enumerate("ab"):
            one = here.open("me", name, number)
            prompt = one.session.prompt(ASKED)
            routes = np.ones((len(prompt.token_ids), experts, 1), np.uint8)
            said = one.session.add(prompt, Completion([ord("4")], [-0.5], "stop", [(0, 3)], routes=routes))
            here.answered(one, one.session, name, [(said.sample, said.turn)])
        here.open("you", "c", 2)
        assert len(here) == left + 1
