"""The turns of sessions on the log: those of this gateway, and what others have answered, found when it is needed.

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

A turn is written after the answer, never before it.

::

    an answer --keep--> queued, at most ``MOST`` and ``MOST_BYTES`` --> ``turns``, keyed by the session's task
                           '--full, because the broker is away: passed over, counted

Failures: a turn that no record can hold, or that no broker takes, is passed over, counted and told; answers go on.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, Final

from schemas.errors import SchemaError
from schemas.groups.vectors import FLOAT32, INT32
from schemas.sampling import Sampling
from schemas.topics import TURNS
from schemas.turn import Answer, DrawnResponse, Turn
from trinity_bus import awake
from trinity_bus.bus import Bus, Producer, partition_of
from trinity_bus.chat import Completion, Session, wire
from trinity_bus.chat.openai import ChatRequest
from trinity_bus.chat.wire import tokens_of
from trinity_bus.errors import BusError
from trinity_bus.gateway.sessions import asked_at
from trinity_bus.rollout.turns import drawn_responses, kept_completion, question_of_prompt

log = logging.getLogger("workers.gateway")

MOST: Final = 1000  # turns that wait to be sent
_TOKEN_BYTES: Final = INT32.itemsize + FLOAT32.itemsize
MOST_BYTES: Final = 64 << 20  # of turns that wait to be sent, and of those of one session


def question_of(prompt: Sequence[int]) -> str:
    """Return what an answer to a prompt is known by on the log, however it was drawn."""
    return question_of_prompt(prompt, Sampling(), 1)


@dataclass(eq=False)
class TurnLog:
    producer: Producer
    _: KW_ONLY
    gateway: str
    incarnation: str
    workflow: str

    def __post_init__(self) -> None:
        self._waiting: asyncio.Queue[tuple[Turn, int]] = asyncio.Queue(MOST)
        self._bytes = 0
        self.passed_over = 0  # turns that are not on the log

    def keep(
        self,
        task_id: str,
        number: int,
        prompt: Sequence[int],
        drawings: Sequence[Completion],
        *,
        answer_id: str,
        alone: bool,
    ) -> None:
        """Take a turn, to be sent soon; with its prompt, where it is a conversation alone."""
        kept_prompt = wire.token_bytes(prompt) if alone else None
        size = sum(_TOKEN_BYTES * len(one.token_ids) + len(one.kept or b"") for one in drawings)
        size += len(kept_prompt or b"")
        if self._waiting.full() or self._bytes + size > MOST_BYTES:
            self.passed_over += 1
            return
        turn = Turn(
            task_id=task_id,
            attempt=1,
            run_id=0,
            number=number,
            after=min(number, 1),
            workflow=self.workflow,
            explorer=self.gateway,
            incarnation=self.incarnation,
            answers=[Answer(question=question_of(prompt), responses=drawn_responses(drawings))],
            answer_id=answer_id,
            prompt=kept_prompt,
        )
        self._waiting.put_nowait((turn, size))
        self._bytes += size

    async def run(self) -> None:
        while True:
            turn, size = await self._waiting.get()
            try:
                await (await self.producer.send(TURNS, turn.task_id, turn))
            except (SchemaError, BusError) as error:
                self.passed_over += 1
                log.warning("a turn of %s is not on the log: %s", turn.task_id, error)
            self._bytes -= size


MOST_LOOKS: Final = 3
MOST_HANGING: Final = 16
LIMIT_S: Final = 0.5  # of both looks: by so much a broker can delay an answer
REQUEST_LIMIT_S: Final = 10.0  # of a look for what has feedback, which no agent waits for
MOST_REQUESTS: Final = 4  # partitions that are read at once for feedback
MOST_OF_ONE: Final = 2  # feedbacks of one client that are looked for at once
_CLOCKS_S: Final = 60.0  # by so much the clocks of two gateways, or of one and a broker, may differ
_AGAIN_S: Final = 0.2


@dataclass(slots=True, kw_only=True)
class _Found(Completion):
    answer_id: str | None


# Prompt and responses of a request that was a conversation by itself, at another gateway.
type RecalledRequest = tuple[list[int], Sequence[Completion]]
# Id of an answer, None where its gateway has not told it; sample and turn of the response that the agent went on with.
type RecalledAnswer = tuple[str | None, tuple[int, int]]


class TurnFinder:
    """Looks for turns of gateways that are no older than ``keep_s``."""

    def __init__(self, bus: Bus, *, workflow: str, keep_s: float) -> None:
        self._bus = bus
        self._workflow = workflow
        self._keep_s = keep_s
        self._requests = asyncio.Semaphore(MOST_REQUESTS)
        # of each client; there are as many as keys
        self._of_one: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(MOST_OF_ONE))
        self._looks: set[asyncio.Task[Any]] = set()  # under way, those among them that nobody waits for any more
        self.recalled = 0  # answers of other gateways that were found

    async def into(
        self, session: Session, task_id: str, asked: ChatRequest, sampling: Sampling
    ) -> list[RecalledAnswer] | None:
        """Take what others have answered of a history into a session; return it, None if it cannot be looked for.

        ``sampling``: how all that is on the log was drawn.
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
            find = partial(_drawn, found)
            taken = session.recall(asked.messages, asked.tools, stop, find, asked.options, sampling=sampling)
            given = ((drawn, (said.sample, said.turn)) for drawn, said in taken)
            recalled += [(drawn.answer_id, place) for drawn, place in given if isinstance(drawn, _Found)]
            if not session.misses(asked.messages, asked.tools):
                break
        self.recalled += len(recalled)
        return None if failed and not recalled else recalled

    async def requests(self, owner: str, answers: Iterable[str]) -> dict[str, RecalledRequest]:
        """Return those requests of a client that other gateways have answered, by the ids of their answers.

        However many are asked for, each partition is read twice at most, and between two the others have their turn.
        Raises BusError: they could not be looked for.
        """
        asked = {one: at for one in answers if (at := asked_at(one)) is not None}
        found: dict[str, RecalledRequest] = {}
        async with self._of_one[owner]:
            for look in range(2):
                missing: defaultdict[int, dict[str, float]] = defaultdict(dict)
                for one in asked.keys() - found.keys():
                    missing[partition_of(f"{owner}/{one}", TURNS.partitions)][one] = asked[one]
                if look and missing:
                    await asyncio.sleep(_AGAIN_S)
                for partition in sorted(missing):
                    async with self._requests:
                        try:
                            find = self._find_requests(owner, partition, missing[partition])
                            found |= await self._look(find, REQUEST_LIMIT_S)
                        except TimeoutError as error:
                            raise BusError(f"{len(asked)} answers cannot be looked for: {error}") from error
        self.recalled += len(found)
        return found

    async def _look[T](self, find: Coroutine[Any, Any, T], limit_s: float) -> T:
        """Return what is found in time; a reader that cannot even be closed is not waited for."""
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
        found: defaultdict[str, list[_Found]] = defaultdict(list)
        partition = partition_of(task_id, TURNS.partitions)
        async with aclosing(self._turns({task_id}, time.time() - self._keep_s, partition)) as turns:
            async for turn in turns:
                for answer in turn.answers:
                    found[answer.question] += [_found(one, turn) for one in answer.responses or ()]
        return dict(found)

    async def _find_requests(
        self, owner: str, partition: int, asked: Mapping[str, float]
    ) -> dict[str, RecalledRequest]:
        """Return requests of a partition that were asked at times (seconds since the epoch, of other machines)."""
        found: dict[str, RecalledRequest] = {}
        since = max(min(asked.values()) - _CLOCKS_S, time.time() - self._keep_s)
        async with aclosing(self._turns({f"{owner}/{one}" for one in asked}, since, partition)) as turns:
            async for turn in turns:
                answer = turn.answer_id or ""
                if answer in asked and turn.task_id == f"{owner}/{answer}" and turn.prompt is not None:
                    responses = [kept_completion(one) for drawn in turn.answers for one in drawn.responses or ()]
                    found.setdefault(answer, (tokens_of(turn.prompt), responses))
                    if len(found) == len(asked):
                        break
        return found

    async def _turns(self, task_ids: set[str], since: float, partition: int) -> AsyncGenerator[Turn]:
        """Yield the turns of sessions in a partition that are on the log by now, and not older than that."""
        offsets = await self._bus.offsets_from(TURNS, round(since * 1000))
        start = {(TURNS.name, partition): offsets[partition]}
        size = 0
        async with self._bus.reader(TURNS, partitions=[partition], start=start, key=task_ids) as reader:
            async for received in reader.replay():
                turn = received.record
                if not isinstance(turn, Turn) or turn.task_id not in task_ids or turn.workflow != self._workflow:
                    continue
                size += len(received.raw)
                if size > MOST_BYTES:
                    log.warning("there are more turns than are recalled, of session %s or beside it", turn.task_id)
                    break
                yield turn


def _drawn(found: Mapping[str, Sequence[_Found]], prompt: Sequence[int]) -> Sequence[Completion]:
    return found.get(question_of(prompt), ())


def _found(drawn: DrawnResponse, turn: Turn) -> _Found:
    kept = kept_completion(drawn)
    return _Found(
        kept.token_ids, kept.logprobs, kept.finish_reason, kept.versions, kept=kept.kept, answer_id=turn.answer_id
    )
