"""Responses under way: whatever is lost, doubled or mixed up, what is gone on with is one response as it was drawn."""

import asyncio
import random
from collections.abc import AsyncGenerator, Iterator, Sequence
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import Answer, DrawnResponse, PartialResponses, Sampling
from schemas.codec import decode, encode
from schemas.groups.kept import decode_kept
from schemas.groups.trainable import Bounds
from schemas.sampling import StructuredOutputs
from schemas.turn import question_after
from tests.support.fakes.engine import FakeEngine
from tests.support.fakes.experiences import kept_of
from tests.support.fakes.turns import partial_responses
from tests.support.mesh.waiting import until
from tests.support.narrowing import some
from trinity_bus.chat import Completion
from trinity_bus.config import ExplorerSettings
from trinity_bus.inference.errors import GenerationError
from trinity_bus.rollout.turns import drawn_responses, question_of_prompt
from trinity_bus.runners.partials import EarlierResponses, ResponseDrawer, ResponseInProgress

BOUNDS = Bounds(vocabulary=1 << 20, positions=1 << 20)
QUESTION = "0" * 32
PIECE, TURN_TOKENS = 4, 32


def record(*answers: Answer, attempt: int = 1) -> PartialResponses:
    """What an attempt has written, as it comes off the log."""
    return decode(encode(partial_responses(list(answers), attempt)), PartialResponses)


def earlier(
    found: Sequence[PartialResponses] = (), told: Sequence[Answer] = (), min_version: int = 0
) -> EarlierResponses:
    return EarlierResponses(found, told, BOUNDS, min_version)


class Source:
    """Draws tokens, no two alike, and remembers behind which, with what logprob and by which version each was drawn."""

    def __init__(self) -> None:
        self.drawn: dict[int, tuple[list[int], float, int]] = {}
        self.version = 0

    def token(self, before: list[int]) -> tuple[int, float]:
        token = len(self.drawn)
        logprob = -(token + 1) / 64  # a float32
        self.drawn[token] = (list(before), logprob, self.version)
        return token, logprob

    def pieces(self, before: list[int], count: int, size: int) -> Iterator[Completion]:
        """So many tokens behind others, as an engine yields them; a version comes amid them at times."""
        spans: list[tuple[int, int]] = []
        here = list[int]()
        while len(here) < count:
            piece = Completion([], [], "", [], kept=bytearray())
            for _ in range(min(size, count - len(here))):
                token, logprob = self.token([*before, *here])
                if not spans or spans[-1][1] != self.version:
                    spans.append((len(here), self.version))
                here.append(token)
                piece.token_ids.append(token)
                piece.logprobs.append(logprob)
                piece.kept = (piece.kept or bytearray()) + kept_of([token, token + 1])
            piece.versions = list(spans)
            yield piece

    def check(self, response: Completion) -> None:
        """Every token stands behind those that it was drawn behind, with all that was told of it."""
        assert len(response.token_ids) == len(response.logprobs)
        sets = decode_kept(bytes(response.kept or b""), len(response.token_ids))
        assert sets.ids[::2].tolist() == response.token_ids
        starts = dict(response.versions)
        version = -1
        for place, (token, logprob) in enumerate(zip(response.token_ids, response.logprobs, strict=True)):
            version = starts.get(place, version)
            assert self.drawn[token] == (response.token_ids[:place], logprob, version)


@settings(max_examples=30)
@given(st.data())
def test_whatever_of_the_log_is_lost_doubled_or_mixed_up_a_response_is_gone_on_with_as_it_was_drawn(
    data: st.DataObject,
) -> None:
    source, log = Source(), list[PartialResponses]()
    for attempt in range(1, data.draw(st.integers(2, 5)) + 1):
        dice = random.Random(data.draw(st.integers(0, 1 << 16)))  # noqa: S311 - no secrets
        known = [one for one in log if dice.random() < 0.9]
        known += dice.sample(known, len(known) // 2)
        dice.shuffle(known)
        found = earlier(known)
        for _ in range(2):  # responses to the same question
            one = found.take(QUESTION, 1 << 20)
            source.check(one.whole)
            if one.whole.finish_reason:
                continue
            size = dice.randint(1, 2 * PIECE)
            for piece in source.pieces(list(one.whole.token_ids), dice.randint(0, 40), size):
                source.version += dice.random() < 0.2
                one.take(piece)
                if dice.random() < 0.2 and (answer := one.unwritten()) is not None:
                    log.append(record(answer, attempt=attempt))
            if dice.random() < 0.3:
                one.take(Completion([], [], "stop", []))
                log += [record(answer, attempt=attempt)] if (answer := one.unwritten()) is not None else []
                assert one.unwritten() is None
            source.check(one.whole)


def written_of(count: int, source: Source | None = None, *, until: int = 1 << 20) -> list[PartialResponses]:
    """What is written of a response of so many tokens until it has as many as that."""
    one, log = ResponseInProgress(QUESTION), []
    for piece in islice((source or Source()).pieces([], count, PIECE), until // PIECE):
        one.take(piece)
        if one.left >= TURN_TOKENS - PIECE and (answer := one.unwritten()) is not None:
            log.append(record(answer))
    return log


def tokens_of(found: Sequence[PartialResponses]) -> int:
    return len(earlier(found).take(QUESTION, 1 << 20).whole.token_ids)


@settings(max_examples=30)
@given(count=st.integers(0, 150), at=st.integers(0, 150))
def test_an_explorer_that_is_killed_costs_no_more_tokens_than_the_setting_says(count: int, at: int) -> None:
    # An engine may have drawn nearly a piece more.
    drawn = min(count, at // PIECE * PIECE + PIECE - 1)
    assert drawn - tokens_of(written_of(count, until=at)) <= TURN_TOKENS


def test_each_of_several_responses_to_a_question_is_given_once_the_first_one_first() -> None:
    source = Source()
    first, second = written_of(64, source), written_of(200, source)
    found = earlier([*first, *second])
    assert [len(found.take(QUESTION, 1 << 20).whole.token_ids) for _ in range(3)] == [48, 192, 0]
    assert earlier(first).take("1" * 32, 1 << 20).whole.token_ids == []


def test_responses_that_begin_with_the_same_few_tokens_are_each_found_whole() -> None:
    log = list[PartialResponses]()
    for length in (20, 200):
        one = ResponseInProgress(QUESTION)
        for number in range(length):
            token, logprob = (1, 0.0) if number == 0 else (1000 * length + number, -1.0)
            one.take(Completion([token], [logprob], "", [(0, 0)]))
            log += [record(answer)] if (answer := one.unwritten()) is not None else []
    found = earlier(log)
    assert [len(found.take(QUESTION, 1 << 20).whole.token_ids) for _ in range(3)] == [19, 199, 0]


def test_a_response_that_another_was_told_like_at_its_beginning_alone_is_gone_on_with() -> None:
    log = written_of(100)
    (begin,) = some(log[0].answers[0].responses)
    other = {"token_ids": begin.token_ids + bytes(4), "logprobs": begin.logprobs + bytes(4), "kept": None}
    told = Answer(question=QUESTION, responses=[begin, begin.model_copy(update=other)])
    assert tokens_of(log) == len(earlier(log, [told]).take(QUESTION, 1 << 20).whole.token_ids) > 0


def test_what_the_workflow_was_told_already_is_not_gone_on_with() -> None:
    log = written_of(100)
    whole = earlier(log).take(QUESTION, 1 << 20).whole
    whole.token_ids.append(7)
    whole.logprobs.append(-1.0)
    whole.kept = None
    told = Answer(question=QUESTION, responses=drawn_responses([whole]))
    assert earlier(log, [told]).take(QUESTION, 1 << 20).whole.token_ids == []
    other = told.model_copy(update={"question": "1" * 32})
    assert earlier(log, [other]).take(QUESTION, 1 << 20).whole.token_ids


def test_a_response_as_long_as_is_allowed_and_one_of_a_version_that_is_too_old_are_passed_over() -> None:
    log = written_of(100)
    length = tokens_of(log)
    assert earlier(log).take(QUESTION, length).whole.token_ids == []
    assert earlier(log).take(QUESTION, length + 1).whole.token_ids
    assert earlier(log, min_version=1).take(QUESTION, 1 << 20).whole.token_ids == []
    last = earlier(log).take(QUESTION, 1 << 20)
    last.take(Completion([], [], "length", []))
    log.append(record(some(last.unwritten())))
    ended = earlier(log).take(QUESTION, length).whole
    assert (len(ended.token_ids), ended.finish_reason) == (length, "length")


async def test_responses_are_no_longer_than_the_policy_draws_them_whenever_explorers_are_killed() -> None:
    """Of several responses to a request, short ones are lost no more than long ones."""
    dice, mean, lengths = random.Random(7), 60, list[int]()  # noqa: S311 - no secrets

    class Ending(FakeEngine):
        """FAKE: each token is the last with the same probability; it is killed after so many steps."""

        async def stream(
            self,
            prompt_token_ids: Sequence[int],
            sampling: Sampling,
            n: int = 1,
            traceparent: str | None = None,
            *,
            every: int = 1,
            trained: bool = False,
        ) -> AsyncGenerator[tuple[int, Completion]]:
            left = set(range(n))
            while left:
                for index in sorted(left):
                    tokens = [dice.randrange(1 << 19) for _ in range(every)]
                    end = next((i + 1 for i in range(every) if dice.random() < 1 / mean), None)
                    more = tokens[:end]
                    yield index, Completion(more, [-1.0] * len(more), "stop" if end else "", [(0, 0)])
                    left -= {index} if end else set()
                await asyncio.sleep(0)

    for _ in range(200):
        log = list[PartialResponses]()
        for steps in (20, 30, 1 << 20):
            drawer = Drawer(log)
            drawing = asyncio.create_task(
                drawer.draw(Ending(), PROMPT, HOT.model_copy(update={"max_tokens": 9999}), 4, None)
            )
            for _ in range(steps):
                await asyncio.sleep(0)
                if drawing.done():
                    break
            if drawing.done():
                lengths += [len(one.token_ids) for one in drawing.result()]
                break
            drawing.cancel()
            await asyncio.wait([drawing])
            log += drawer.log
    found = sum(lengths) / len(lengths)
    assert abs(found - mean) < 4 * mean / len(lengths) ** 0.5, f"{found:.1f} tokens, {mean} are drawn by the policy"


GOOD: dict[str, Any] = {
    "token_ids": bytes(8),
    "logprobs": bytes(8),
    "finish_reason": "",
    "versions": [[0, 3], [1, 4]],
}


@pytest.mark.parametrize(
    "poison",
    [
        {"token_ids": b"\xff\xff\xff\xff" * 2},
        {"token_ids": (1 << 20).to_bytes(4, "little") * 2},
        {"logprobs": b"\x00\x00\xc0\x7f" * 2},
        {"logprobs": b"\x00\x00\x80\x3f" * 2},
        {"versions": []},
        {"versions": [[1, 4]]},
        {"versions": [[0, -1]]},
        {"versions": [[0, 3], [2, 4]]},
        {"versions": [[0, 3], [0, 4]]},
        {"kept": kept_of([5], [6])},
        {"kept": kept_of([0, 1 << 20], [0])},
        {"token_ids": b"", "logprobs": b""},
    ],
)
def test_what_no_engine_can_have_drawn_is_passed_over(poison: dict[str, Any]) -> None:
    good = Answer(question=QUESTION, responses=[DrawnResponse(**GOOD)])
    assert earlier([record(good)]).take(QUESTION, 9).whole.token_ids == [0, 0]
    bad = DrawnResponse(**GOOD | poison)
    behind = good.model_copy(update={"question": question_after(QUESTION, bad)})
    found = record(Answer(question=QUESTION, responses=[bad]), behind)
    assert earlier([found]).take(QUESTION, 9).whole.token_ids == []


def test_tokens_of_no_known_version_are_not_written_nor_are_large_sets() -> None:
    unknown, large = ResponseInProgress(QUESTION), ResponseInProgress(QUESTION)
    for _ in range(TURN_TOKENS):
        unknown.take(Completion([1, 2], [-1.0, -1.0], "", []))
        large.take(Completion([1], [-1.0], "", [(0, 1)], kept=bytearray(kept_of(list(range(1, 60_000))))))
        assert unknown.unwritten() is None
    assert large.unwritten() is None
    large.take(Completion([1], [-1.0], "stop", [(0, 1)], kept=bytearray(1)))
    assert large.unwritten() is None
    assert len(large.whole.token_ids) == TURN_TOKENS + 1


def test_tokens_are_not_written_before_it_is_known_which_version_has_drawn_them() -> None:
    log = written_of(100)
    one = earlier(log).take(QUESTION, 1 << 20)
    begun = len(one.whole.token_ids)
    for _ in range(TURN_TOKENS):
        one.take(Completion([1], [-1.0], "", []))
        assert one.unwritten() is None
    one.take(Completion([2], [-1.0], "stop", [(0, 4)]))
    (rest,) = some(some(one.unwritten()).responses)
    assert (len(rest.token_ids) // 4, rest.versions) == (TURN_TOKENS + 1, [[0, 4]])
    assert one.whole.versions == [(0, 0), (begun, 4)]


HOT = Sampling(max_tokens=100)


class Drawer(ResponseDrawer):
    """With what it has written."""

    def __init__(self, found: Sequence[PartialResponses] = (), *, trained: bool = True, **settings: Any) -> None:
        self.log: list[PartialResponses] = []
        own = ExplorerSettings(turn_tokens=TURN_TOKENS, **settings)
        super().__init__(earlier(found), self._keep, own, trained=trained)

    async def _keep(self, answers: list[Answer]) -> None:
        await asyncio.sleep(0)
        self.log.append(record(*answers))


PROMPT = [ord(character) for character in "tell: "]
ANSWER = "".join(chr(100 + i) for i in range(90))


async def killed(n: int = 1, *, drained: bool = False) -> list[PartialResponses]:
    """What is written of a response when its explorer is killed amid it."""
    engine, drawer = FakeEngine(version=3, answer=ANSWER), Drawer()
    engine.hang_after = 70
    drawing = asyncio.create_task(drawer.draw(engine, PROMPT, HOT, n, None))
    await until(lambda: engine.tokens_generated == n * 70)
    if drained:
        assert await drawer.checkpoint()
    drawing.cancel()
    await asyncio.wait([drawing])
    assert engine.aborted == 1
    return drawer.log


@pytest.mark.parametrize("drained", [False, True])
async def test_the_next_attempt_goes_on_behind_what_is_written_and_draws_no_more_than_was_lost(drained: bool) -> None:
    log = await killed(2, drained=drained)
    engine, drawer = FakeEngine(version=4, answer=ANSWER), Drawer(log)
    engine.expert = 5
    starts = [69, 69] if drained else [57, 57]
    for start, response in zip(starts, await drawer.draw(engine, PROMPT, HOT, 2, None), strict=True):
        assert "".join(map(chr, response.token_ids)) == ANSWER
        assert (response.finish_reason, len(response.logprobs)) == ("stop", 90)
        assert len([] if response.routes is None else response.routes) == len(PROMPT) + 89
        assert response.versions == [(0, 3), (start, 4)]
    assert engine.tokens_generated == sum(90 - start for start in starts)
    assert [len(prompt) for prompt in engine.prompts] == [len(PROMPT) + start for start in starts]


async def test_what_is_gone_on_with_is_written_behind_what_was_and_ends_where_it_would_have() -> None:
    log = await killed()
    drawer = Drawer(log)
    (response,) = await drawer.draw(FakeEngine(version=3, answer=ANSWER), PROMPT, HOT, 1, None)
    assert response.versions == [(0, 3)]
    found = earlier([*drawer.log, *log]).take(question_of_prompt(PROMPT, HOT, 1), 1000)
    assert "".join(map(chr, found.whole.token_ids)) == ANSWER[:87]
    short = Sampling(max_tokens=80)
    (response,) = await Drawer(log).draw(FakeEngine(version=3, answer=ANSWER), PROMPT, short, 1, None)
    assert len(response.token_ids) == 80, "asked otherwise: drawn from its beginning"
    crowded = FakeEngine(version=3, answer=ANSWER)
    await Drawer(log, max_model_len=len(PROMPT) + 58).draw(crowded, PROMPT, HOT, 1, None)
    assert crowded.tokens_generated == 90, "no room behind it"


@pytest.mark.parametrize("capture_routes", [False, True])
async def test_what_has_ended_is_not_drawn_again_while_the_attempt_went_on(capture_routes: bool) -> None:
    drawer = Drawer()
    await drawer.draw(FakeEngine(version=3, answer=ANSWER), PROMPT, HOT, 1, None)
    assert await drawer.checkpoint()
    assert not await drawer.checkpoint(), "once"
    engine = FakeEngine(version=4, answer="x")
    engine.expert = 5
    again = Drawer(drawer.log, capture_routes=capture_routes)
    (response,) = await again.draw(engine, PROMPT, HOT, 1, None)
    assert ("".join(map(chr, response.token_ids)), response.finish_reason) == (ANSWER, "stop")
    assert response.versions == [(0, 3)]
    # The fake draws a token behind all but the last, whose routes are not told.
    assert (None if response.routes is None else len(response.routes)) == (len(PROMPT) + 89 if capture_routes else None)
    assert len(engine.prompts) == capture_routes


async def test_of_equal_responses_each_is_written_and_given_as_often_as_no_turn_has_it() -> None:
    drawer = Drawer()
    drawn = await drawer.draw(FakeEngine(version=3, answer="42"), PROMPT, HOT, 4, None)
    question = question_of_prompt(PROMPT, HOT, 4)
    told = Answer(question=question, responses=drawn_responses(drawn[:1]))
    drawer.forget([told])
    assert await drawer.checkpoint()
    for turns, lengths in ([], [2, 2, 2, 0]), ([told, told], [2, 0, 0, 0]):
        found = earlier(drawer.log, turns)
        assert [len(found.take(question, 100).whole.token_ids) for _ in range(4)] == lengths


@pytest.mark.parametrize("trained", [True, False])
async def test_from_which_tokens_it_was_drawn_is_asked_of_what_is_to_be_trained_alone(trained: bool) -> None:
    engine, drawer = FakeEngine(version=3, answer=ANSWER), Drawer(trained=trained)
    await drawer.draw(engine, PROMPT, HOT, 2, None)
    await drawer.draw(engine, PROMPT, HOT.model_copy(update={"max_tokens": 2}), 1, None)
    assert engine.trained == [trained, trained], "streamed, and at once"


async def test_what_a_turn_has_is_not_written_once_more() -> None:
    drawer = Drawer()
    sampling = Sampling(max_tokens=50)
    drawn = await drawer.draw(FakeEngine(version=3, answer="0123456789"), PROMPT, sampling, 1, None)
    drawer.forget([Answer(question=question_of_prompt(PROMPT, sampling, 1), responses=drawn_responses(drawn))])
    assert not await drawer.checkpoint()


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 0},
        {"stop": ["x"]},
        {"presence_penalty": 0.5},
        {"min_tokens": 5},
        {"structured_outputs": StructuredOutputs(regex="a*")},
        {"max_tokens": TURN_TOKENS},
        {},
    ],
)
async def test_what_cannot_be_gone_on_with_and_what_is_short_is_drawn_at_once_and_never_written(
    changes: dict[str, Any],
) -> None:
    class AtOnce(FakeEngine):
        def stream(self, *_: Any, **__: Any) -> AsyncGenerator[tuple[int, Completion]]:
            raise AssertionError

    drawer, engine = Drawer(), AtOnce(answer=ANSWER)
    # One that does not would have those written alone that have ended.
    engine.tells_versions = bool(changes)
    await drawer.draw(engine, PROMPT, HOT.model_copy(update=changes), 1, None)
    assert not await drawer.checkpoint()


async def test_an_engine_that_fails_on_one_of_several_fails_the_request_with_its_own_error() -> None:
    class Failing(FakeEngine):
        async def stream(self, *given: Any, **how: Any) -> AsyncGenerator[tuple[int, Completion]]:
            if len(given[0]) > len(PROMPT):
                raise GenerationError("no")
            await asyncio.Event().wait()
            yield 0, Completion([], [], "", [])

    drawer = Drawer(await killed(2))
    with pytest.raises(GenerationError, match="no"):
        await drawer.draw(Failing(), PROMPT, HOT, 2, None)
    assert not await drawer.checkpoint()
