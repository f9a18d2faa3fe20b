"""Responses under way: whatever is lost, doubled or mixed up, what is gone on with is one response as it was drawn."""

import asyncio
import contextlib
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
from tests.support.mesh.waiting import beside, until
from tests.support.narrowing import some
from trinity_bus.chat import Completion
from trinity_bus.config import ExplorerSettings
from trinity_bus.inference.concurrency import Steps
from trinity_bus.inference.errors import GenerationError
from trinity_bus.rollout.turns import drawn_responses, question_of_prompt
from trinity_bus.runners.partials import EarlierResponses, ResponseDrawer, ResponseInProgress, write_when_due

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


class Drawn:
    """One response while it is drawn, in pieces, and written at times."""

    def __init__(self, found: EarlierResponses, attempt: int = 1, number: int = 0) -> None:
        self.one = ResponseInProgress(QUESTION, found.take(QUESTION, 1 << 20), attempt, number)
        self.tokens = list(self.one.whole.token_ids)
        self.drawn = Completion()
        self._new = Completion()

    def take(self, piece: Completion) -> None:
        for one in self.drawn, self._new:
            one.add(piece)
            one.versions = piece.versions
        self.tokens += piece.token_ids

    def unwritten(self) -> Answer | None:
        new, self._new = self._new, Completion()
        return self.one.more(new)

    def end(self) -> Answer | None:
        self.drawn.finish_reason = "stop"
        self.one.end(self.drawn)
        return self.one.rest()


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
        for number in range(2):  # responses to the same question
            one = Drawn(found, attempt, number)
            source.check(one.one.whole)
            if one.one.whole.finish_reason:
                continue
            size = dice.randint(1, 2 * PIECE)
            for piece in source.pieces(list(one.tokens), dice.randint(0, 40), size):
                source.version += dice.random() < 0.2
                one.take(piece)
                if dice.random() < 0.2 and (answer := one.unwritten()) is not None:
                    log.append(record(answer, attempt=attempt))
            if dice.random() < 0.3:
                log += [record(answer, attempt=attempt)] if (answer := one.end()) is not None else []
                source.check(one.one.whole)
                assert one.one.rest() is None, "once"


@settings(max_examples=100)
@given(st.data())
def test_of_responses_that_share_tokens_none_is_lost_doubled_or_mixed_up(data: st.DataObject) -> None:
    """Of two tokens, each as likely as can be: of a group nearly all begin alike, and many are equal."""
    dice = random.Random(data.draw(st.integers(0, 1 << 16)))  # noqa: S311 - no secrets
    group, log = data.draw(st.integers(1, 6)), list[PartialResponses]()
    written: list[tuple[list[int], bool]] = []
    for attempt in range(1, 5):
        known = log + dice.sample(log, len(log) // 2)
        dice.shuffle(known)
        found = earlier(known)
        drawing = [Drawn(found, attempt, number) for number in range(group)]
        begun = [(one.tokens, one.one.whole.finish_reason != "") for one in drawing]
        assert sorted(one for one in begun if one[0]) == sorted(written), "each as far as it was written, once"
        written = []
        for one in drawing:
            length, over = len(one.tokens), one.one.whole.finish_reason != ""
            for _ in range(dice.randint(0, 3) if not over else 0):
                more = [dice.randint(0, 1) for _ in range(dice.randint(0, 2))]
                one.take(Completion(more, [0.0] * len(more), "", [(0, 0)]))
                if dice.random() < 0.7 and (answer := one.unwritten()) is not None:
                    log.append(record(answer, attempt=attempt))
                    length = len(one.tokens)
            if one.drawn.token_ids and dice.random() < 0.3:
                log.append(record(some(one.end()), attempt=attempt))
                length, over = len(one.tokens), True
            written += [(one.tokens[:length], over)] if length else []
    # Of those that have ended, a turn has some: with each, one less is given, of the others all.
    told = [tokens for tokens, over in written if over and dice.random() < 0.5]
    responses = drawn_responses([Completion(tokens, [0.0] * len(tokens), "stop", [(0, 0)]) for tokens in told])
    found = earlier(log, [Answer(question=QUESTION, responses=responses)])
    left = [found.take(QUESTION, 1 << 20).whole.token_ids for _ in range(group)]
    assert sum(map(bool, left)) == len(written) - len(told)


def written_of(
    count: int, source: Source | None = None, *, until: int = 1 << 20, number: int = 0
) -> list[PartialResponses]:
    """What is written of a response of so many tokens until it has as many as that."""
    one, log = Drawn(earlier(), 1, number), list[PartialResponses]()
    for at, piece in enumerate(islice((source or Source()).pieces([], count, PIECE), until // PIECE), 1):
        one.take(piece)
        if not at % (TURN_TOKENS // PIECE):
            log.append(record(some(one.unwritten())))
    return log


def tokens_of(found: Sequence[PartialResponses]) -> int:
    return len(earlier(found).take(QUESTION, 1 << 20).whole.token_ids)


def test_each_of_several_responses_to_a_question_is_given_once_the_first_one_first() -> None:
    source = Source()
    first, second = written_of(64, source), written_of(200, source, number=1)
    found = earlier([*first, *second])
    assert [len(found.take(QUESTION, 1 << 20).whole.token_ids) for _ in range(3)] == [64, 192, 0]
    assert earlier(first).take("1" * 32, 1 << 20).whole.token_ids == []


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
    last = Drawn(earlier(log), 2)
    log.append(record(some(last.one.more(Completion(finish_reason="length"))), attempt=2))
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
            trained: bool = False,
        ) -> AsyncGenerator[tuple[int, Completion]]:
            left = set(range(n))
            while left:
                for index in sorted(left):
                    is_end = dice.random() < 1 / mean
                    yield index, Completion([dice.randrange(1 << 19)], [-1.0], "stop" if is_end else "", [(0, 0)])
                    left -= {index} if is_end else set()
                self.steps.add(1)
                for _ in range(4):
                    await asyncio.sleep(0)

    for _ in range(200):
        log = list[PartialResponses]()
        for steps in (40, 60, 1 << 20):
            drawer, engine = Drawer(log), Ending()
            drawing = asyncio.create_task(drawer.drawn(engine, HOT.model_copy(update={"max_tokens": 9999}), 4))
            while engine.steps.count < steps and not drawing.done():  # noqa: ASYNC110 - its steps wait for this
                await asyncio.sleep(0)
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
    good = Answer(question=QUESTION, responses=[DrawnResponse(**GOOD)], number=0)
    assert earlier([record(good)]).take(QUESTION, 9).whole.token_ids == [0, 0]
    assert earlier([record(good.model_copy(update={"number": None}))]).take(QUESTION, 9).whole.token_ids == []
    bad = DrawnResponse(**GOOD | poison)
    behind = good.model_copy(update={"question": question_after(QUESTION, bad, 1, 0)})
    found = record(Answer(question=QUESTION, responses=[bad], number=0), behind)
    assert earlier([found]).take(QUESTION, 9).whole.token_ids == []


def test_tokens_of_no_known_version_are_not_written_nor_are_large_sets() -> None:
    unknown, large = Drawn(earlier()), Drawn(earlier())
    for _ in range(TURN_TOKENS):
        unknown.take(Completion([1, 2], [-1.0, -1.0], "", []))
        assert unknown.unwritten() is None
        large.take(Completion([1], [-1.0], "", [(0, 1)], kept=bytearray(kept_of(list(range(1, 60_000))))))
    assert large.unwritten() is None
    large.take(Completion([1], [-1.0], "", [(0, 1)], kept=bytearray(1)))
    assert large.unwritten() is None, "nothing is behind what is not there"
    assert large.end() is None
    assert len(large.one.whole.token_ids) == TURN_TOKENS + 1


def test_what_is_written_at_the_end_is_what_was_not_written_before() -> None:
    source, log = Source(), list[PartialResponses]()
    one = Drawn(earlier())
    for at, piece in enumerate(source.pieces([], 30, PIECE)):
        source.version = at
        one.take(piece)
        if at == 3:
            log.append(record(some(one.unwritten())))
    log.append(record(some(one.end())))
    (last,) = some(log[-1].answers[0].responses)
    assert len(last.token_ids) // 4 == 30 - 4 * PIECE
    found = earlier(log).take(QUESTION, 1 << 20).whole
    source.check(found)
    assert (len(found.token_ids), found.finish_reason) == (30, "stop")


HOT = Sampling(max_tokens=100)


class Drawer(ResponseDrawer):
    """With what it has written."""

    def __init__(self, found: Sequence[PartialResponses] = (), *, trained: bool = True, **settings: Any) -> None:
        self.log: list[PartialResponses] = []
        attempt = 1 + max((one.attempt for one in found), default=0)
        self.settings = ExplorerSettings(**{"turn_tokens": TURN_TOKENS} | settings)
        super().__init__(attempt, earlier(found), self._keep, self.settings, trained=trained)

    async def _keep(self, answers: list[Answer]) -> None:
        await asyncio.sleep(0)
        self.log.append(record(*answers, attempt=self._attempt))

    async def drawn(self, engine: FakeEngine, sampling: Sampling = HOT, n: int = 1) -> Sequence[Completion]:
        """Draw, and write as an explorer does."""
        async with beside(write_when_due(lambda: [self], engine.steps, self.settings)):
            return await self.draw(engine, PROMPT, sampling, n, None)


PROMPT = [ord(character) for character in "tell: "]
ANSWER = "".join(chr(100 + i) for i in range(90))


async def killed(n: int = 1, *, drained: bool = False) -> list[PartialResponses]:
    """What is written of a response when its explorer is killed amid it."""
    engine, drawer = FakeEngine(version=3, answer=ANSWER), Drawer()
    engine.hang_after = 70
    drawing = asyncio.create_task(drawer.drawn(engine, n=n))
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
    known = earlier(log)
    starts = [len(known.take(question_of_prompt(PROMPT, HOT, 2), 1000).whole.token_ids) for _ in range(2)]
    assert starts == [69, 69] if drained else 70 - TURN_TOKENS <= min(starts) <= max(starts) < 69
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
    (response,) = await drawer.drawn(FakeEngine(version=3, answer=ANSWER))
    assert response.versions == [(0, 3)]
    assert await drawer.checkpoint()
    found = earlier([*drawer.log, *log]).take(question_of_prompt(PROMPT, HOT, 1), 1000)
    assert ("".join(map(chr, found.whole.token_ids)), found.whole.finish_reason) == (ANSWER, "stop")
    begun = len(earlier(log).take(question_of_prompt(PROMPT, HOT, 1), 1000).whole.token_ids)
    short = Sampling(max_tokens=80)
    (response,) = await Drawer(log).draw(FakeEngine(version=3, answer=ANSWER), PROMPT, short, 1, None)
    assert len(response.token_ids) == 80, "asked otherwise: drawn from its beginning"
    crowded = FakeEngine(version=3, answer=ANSWER)
    await Drawer(log, max_model_len=len(PROMPT) + begun).draw(crowded, PROMPT, HOT, 1, None)
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


async def test_a_checkpoint_waits_for_the_one_before_also_where_nobody_waits_for_that_any_more() -> None:
    durable = asyncio.Event()

    class Slow(Drawer):
        async def _keep(self, answers: list[Answer]) -> None:
            await durable.wait()
            await super()._keep(answers)

    drawer = Slow()
    await drawer.draw(FakeEngine(version=3, answer="0123456789"), PROMPT, Sampling(max_tokens=50), 1, None)
    cancelled, last = asyncio.create_task(drawer.checkpoint()), asyncio.create_task(drawer.checkpoint())
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.wait([cancelled, last], timeout=0.01)
    assert (cancelled.done(), last.done()) == (True, False)
    durable.set()
    assert await last, "a drain tells where it lies"
    assert len(drawer.log) == 1


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


@settings(max_examples=15, deadline=None)
@given(
    most=st.integers(1, 9).map(lambda number: 32 * number),
    begins=st.lists(st.integers(0, 300), min_size=1, max_size=4),
)
def test_no_response_ever_has_more_tokens_unwritten_than_the_setting_says(most: int, begins: list[int]) -> None:
    steps, written = Steps(), dict[int, float]()

    class Watched(FakeEngine):
        async def generate(self, *given: Any, watch: Any = None, **_: Any) -> list[Completion]:
            number = len(given[0])

            def so_far() -> list[Completion]:
                written[number] = steps.count
                return [Completion([1], [-1.0], "", [(0, 0)])]

            written[number] = steps.count
            watch(so_far)
            await asyncio.Event().wait()
            raise AssertionError

    async def scenario() -> None:
        drawer, engine = Drawer(turn_tokens=most), Watched()
        engine.steps = steps
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(beside(write_when_due(lambda: [drawer], steps, drawer.settings)))
            for step in range(800):
                for number, begin in enumerate(begins, 1):
                    if begin == step:
                        sampling = Sampling(max_tokens=5000)
                        drawing = drawer.draw(engine, [0] * number, sampling, 1, None)
                        await stack.enter_async_context(beside(drawing))
                steps.add(1)
                for _ in range(6):
                    await asyncio.sleep(0)
                assert all(steps.count - at <= most for at in written.values())
        assert len(drawer.log) <= 800 / (most * 6 // 8) + 1, "nor is it written much more often"

    asyncio.run(scenario())


async def test_an_engine_that_fails_on_one_of_several_fails_the_request_with_its_own_error() -> None:
    class Failing(FakeEngine):
        async def stream(self, *given: Any, **how: Any) -> AsyncGenerator[tuple[int, Completion]]:
            if len(given[0]) > len(PROMPT):
                raise GenerationError("no")
            await asyncio.Event().wait()
            yield 0, Completion([], [], "", [])

    drawer = Drawer(await killed(2))
    with pytest.raises(GenerationError, match="no"):
        await drawer.drawn(Failing(), n=2)
    assert not await drawer.checkpoint()
    assert not drawer.is_due
