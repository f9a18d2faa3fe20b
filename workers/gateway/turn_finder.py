"""What other gateways have answered, found on the log when an agent reaches this one with it.

::

    a history whose last answer this gateway has not given --find--> ``turns`` of the session, of the last ``session_s``
        --Session.recall--> as far as they are what was drawn: the same samples as there, known by the same ids
        '--no such turns, or none in time: the history was rewritten, as far as can be known--> another sample

    feedback on an answer that this gateway has not given --find--> ``turns`` of that request, from its time on
        --its prompt and responses--> a conversation here, as it was there
        '--no such turn--> 404;  the broker does not answer--> 503

A turn is on the log soon after its answer, so it is looked for twice. After ``MOST_LOOKS`` times in vain nothing is
looked for any more: the agent rewrites its histories. A look that fails says nothing of that. The request waits for no
longer than ``LIMIT_S``, whatever the broker does: a look that hangs is left behind, and while ``MOST_HANGING`` of them
do so nothing is looked for.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from schemas.topics import TURNS
from schemas.turn import DrawnResponse, Turn
from trinity_bus import awake
from trinity_bus.bus import Bus, partition_of
from trinity_bus.chat import Completion, Session
from trinity_bus.chat.openai import ChatRequest
from trinity_bus.errors import BusError
from trinity_bus.gateway.answer_ids import asked_at
from trinity_bus.gateway.wire import tokens_of
from trinity_bus.rollout.turns import KeptCompletion, kept_completion
from workers.gateway.turns import question_of

log = logging.getLogger("workers.gateway")

MOST_LOOKS: Final = 3
MOST_BYTES: Final = 64 << 20
"""Of the turns of one session."""
MOST_HANGING: Final = 16
LIMIT_S: Final = 0.5
"""Of both looks: by so much a broker can delay an answer."""
REQUEST_LIMIT_S: Final = 10.0
"""Of a look for what has feedback, which no agent waits for."""
MOST_REQUESTS: Final = 4
"""That are looked for at once."""
_CLOCKS_S: Final = 60.0
"""By so much the clocks of two gateways, or of one and a broker, may differ."""
_AGAIN_S: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found(KeptCompletion):
    answer_id: str | None


@dataclass(frozen=True, slots=True)
class RecalledRequest:
    """A request that was a conversation by itself, at another gateway."""

    prompt: list[int]
    responses: Sequence[KeptCompletion]


@dataclass(frozen=True, slots=True)
class RecalledAnswer:
    """What another gateway has answered."""

    id: str | None
    """None: its gateway has not told it."""
    place: tuple[int, int]
    """Sample and turn, of the response that the agent has gone on with."""


class TurnFinder:
    """Looks for turns.

    Args:
        bus: Connected.
        workflow: What stands in turns of gateways.
        keep_s: How old they may be.
    """

    def __init__(self, bus: Bus, *, workflow: str, keep_s: float) -> None:
        self._bus = bus
        self._workflow = workflow
        self._keep_s = keep_s
        self._requests = asyncio.Semaphore(MOST_REQUESTS)
        self._looks: set[asyncio.Task[Any]] = set()
        """Under way, those among them that nobody waits for any more."""
        self.recalled = 0
        """Answers of other gateways that were found."""

    async def into(self, session: Session, task_id: str, asked: ChatRequest) -> list[RecalledAnswer] | None:
        """Take into a session what others have answered of a history; return it, or None if it could not be looked for.

        Raises:
            ChatError: The history cannot be written as tokens.
        """
        recalled: list[RecalledAnswer] = []
        failed = False
        until = awake.now() + LIMIT_S
        for look in range(2):
            if look:
                await asyncio.sleep(_AGAIN_S)
            try:
                found = await self._look(self._find(task_id), until - awake.now())
            except (BusError, TimeoutError) as error:
                log.warning("turns of session %s cannot be looked for, which may begin a sample: %s", task_id, error)
                failed = True
                break
            stop = asked.sampling.stop or ()
            taken = session.recall(asked.messages, asked.tools, stop, partial(_drawn, found), asked.options)
            recalled += [
                RecalledAnswer(drawn.answer_id, (said.sample, said.turn))
                for drawn, said in taken
                if isinstance(drawn, _Found)
            ]
            if not session.misses(asked.messages, asked.tools):
                break
        self.recalled += len(recalled)
        return None if failed and not recalled else recalled

    async def request(self, task_id: str, answer_id: str) -> RecalledRequest | None:
        """Return a request that another gateway has answered; None where there is none on the log.

        Args:
            task_id: Under which it would be contributed.
            answer_id: By which its client knows it.

        Raises:
            BusError: It could not be looked for.
        """
        asked = asked_at(answer_id)
        if asked is None:
            return None
        found = None
        async with self._requests:
            for look in range(2):
                if look:
                    await asyncio.sleep(_AGAIN_S)
                try:
                    found = await self._look(self._find_request(task_id, answer_id, asked), REQUEST_LIMIT_S)
                except TimeoutError as error:
                    raise BusError(f"answer {answer_id} cannot be looked for: {error}") from error
                if found is not None:
                    self.recalled += 1
                    break
        return found

    async def _look[T](self, find: Coroutine[Any, Any, T], limit_s: float) -> T:
        """Return what is found in time; a reader that cannot even be closed is not waited for.

        Raises:
            BusError: The broker refuses.
            TimeoutError: It is slow.
        """
        if len(self._looks) >= MOST_HANGING:
            find.close()
            raise TimeoutError("the broker answers none of those who look")
        look = asyncio.create_task(find, name="turns")
        self._looks.add(look)
        look.add_done_callback(self._looked)
        try:
            done, _ = await awake.wait([look], limit_s)
        finally:
            look.cancel()
        if not done:
            raise TimeoutError("the broker takes too long")
        return look.result()

    def _looked(self, look: asyncio.Task[Any]) -> None:
        self._looks.discard(look)
        if not look.cancelled():
            # Otherwise asyncio tells of an error that nobody has waited for.
            look.exception()

    async def _find(self, task_id: str) -> dict[str, Sequence[_Found]]:
        """Return what was drawn in a session, by the question of its prompt."""
        found: defaultdict[str, list[_Found]] = defaultdict(list)
        async with aclosing(self._turns(task_id, time.time() - self._keep_s)) as turns:
            async for turn in turns:
                for answer in turn.answers:
                    found[answer.question] += [_found(one, turn) for one in answer.responses or ()]
        return dict(found)

    async def _find_request(self, task_id: str, answer_id: str, asked: float) -> RecalledRequest | None:
        """Return a request that was asked at a time (seconds since the epoch, of another machine's clock)."""
        since = max(asked - _CLOCKS_S, time.time() - self._keep_s)
        async with aclosing(self._turns(task_id, since)) as turns:
            async for turn in turns:
                if turn.answer_id == answer_id and turn.prompt is not None:
                    responses = [kept_completion(one) for answer in turn.answers for one in answer.responses or ()]
                    return RecalledRequest(tokens_of(turn.prompt), responses)
        return None

    async def _turns(self, task_id: str, since: float) -> AsyncGenerator[Turn]:
        """Yield the turns of a session that are on the log by now, and not older than that."""
        partition = partition_of(task_id, TURNS.partitions)
        offsets = await self._bus.offsets_from(TURNS, round(since * 1000))
        start = {(TURNS.name, partition): offsets[partition]}
        size = 0
        async with self._bus.reader(TURNS, partitions=[partition], start=start, key=task_id) as reader:
            async for received in reader.replay():
                turn = received.record
                if not isinstance(turn, Turn) or (turn.task_id, turn.workflow) != (task_id, self._workflow):
                    continue
                size += len(received.raw)
                if size > MOST_BYTES:
                    log.warning("session %s has more turns than are recalled", task_id)
                    break
                yield turn


def _drawn(found: Mapping[str, Sequence[_Found]], prompt: Sequence[int]) -> Sequence[Completion]:
    return found.get(question_of(prompt), ())


def _found(drawn: DrawnResponse, turn: Turn) -> _Found:
    kept = kept_completion(drawn)
    return _Found(kept.token_ids, kept.logprobs, kept.finish_reason, kept.versions, answer_id=turn.answer_id)
