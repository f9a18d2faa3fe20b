"""Whatever instant of a transaction a process stands still at, and for however long: what it writes is there once.

The producer, and the client library below it, are the real ones. The broker and the network to it are made up here, and
so is time: between any two turns of the event loop it may jump, as it does for a process that is stopped.
"""

import asyncio
import heapq
import itertools
import random
import selectors
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import InvalidProducerEpoch, InvalidTxnState, RequestTimedOutError
from aiokafka.producer import producer as producer_module
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.transaction import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)

from schemas.topics import RESULTS
from trinity_bus import awake
from trinity_bus.bus.client.internals import DefaultRecordBatch, LogClient
from trinity_bus.bus.write.producer import Producer
from trinity_bus.config import KafkaSettings
from trinity_bus.errors import BusError
from workers.coordinator.pending_commit import is_input_error

OUTAGE_S = 8.0
REQUEST_S = 3.0
WAY_S = 0.001
"""How long a request is under way, and its answer."""
TURN_S = 1e-6
INPUTS = [b"input-%d" % number for number in range(4)]
AT_ONCE = 2
"""Inputs that are decided upon in one transaction."""
SETTINGS = KafkaSettings(
    bootstrap_servers="a:1", outage_s=OUTAGE_S, request_timeout_s=REQUEST_S, compression="none", namespace="test"
)


@dataclass(frozen=True)
class Freeze:
    """Everything stands still.

    Args:
        turn: Of the event loop, before which.
        seconds: How long.
        broker: Whether the broker stands still too; else it goes on meanwhile.
        later_s: How much later the broker goes on.
    """

    turn: int
    seconds: float
    broker: bool = False
    later_s: float = 0.0


class World(selectors.SelectSelector):
    """Time, the network and the broker; the event loop asks it whether anything has come."""

    def __init__(self, freezes: Iterable[Freeze] = (), *, late_expiry: bool = False) -> None:
        super().__init__()
        self.now = 1000.0
        self.turns = 0
        self.broker = Broker(late_expiry=late_expiry)
        self._freezes = {freeze.turn: freeze for freeze in freezes}
        self._coming: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def later(self, seconds: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._coming, (self.now + seconds, next(self._numbers), happen))

    def select(self, timeout: float | None = None) -> list[Any]:
        self.turns += 1
        if (freeze := self._freezes.get(self.turns)) is not None:
            if freeze.broker:
                delay = freeze.seconds + freeze.later_s
                self._coming = [(at + delay, number, happen) for at, number, happen in self._coming]
            self._go_on_until(self.now + freeze.seconds)
            return []
        if timeout is None:
            assert self._coming, "nothing will ever happen again"
            timeout = self._coming[0][0] - self.now
        elif self._coming:
            timeout = min(timeout, self._coming[0][0] - self.now)
        self._go_on_until(self.now + max(timeout, TURN_S))
        return []

    def _go_on_until(self, end: float) -> None:
        while self._coming and self._coming[0][0] <= end:
            at, _, happen = heapq.heappop(self._coming)
            self.now = max(self.now, at)
            happen()
        self.now = max(self.now, end)


@dataclass
class Broker:
    """Knows one transactional id, and one partition."""

    late_expiry: bool
    """Whether a request comes before it is noticed that a transaction has been open for too long."""
    committed: list[bytes] = field(default_factory=list)
    _open: list[bytes] | None = None
    _since: float = 0.0
    _timeout_s: float = 0.0
    _epoch: int = -1
    _sequence: int = 0
    _ended: int | None = None
    """How the last transaction was ended."""

    def answer(self, request: Any, now: float) -> SimpleNamespace:
        expired = self._open is not None and now - self._since > self._timeout_s
        if expired and not self.late_expiry:
            self._begin_epoch()
        answer = self._answer(request, now)
        if expired and self._open is not None:
            self._begin_epoch()
        return answer

    def _begin_epoch(self) -> None:
        self._epoch += 1
        self._open, self._sequence, self._ended = None, 0, None

    def _answer(self, request: Any, now: float) -> SimpleNamespace:
        match request:
            case InitProducerIdRequest():
                self._begin_epoch()
                self._timeout_s = request._transaction_timeout_ms / 1000
                return SimpleNamespace(error_code=0, producer_id=7, producer_epoch=self._epoch)
            case ProduceRequest():
                ((topic, ((partition, data),)),) = request._topics
                code = self._write(DefaultRecordBatch(bytes(data)))
                return SimpleNamespace(API_VERSION=2, topics=[(topic, [(partition, code, 0, -1)])])
        code = 0 if request._producer_epoch == self._epoch else InvalidProducerEpoch.errno
        match request:
            case AddPartitionsToTxnRequest() | AddOffsetsToTxnRequest():
                if not code and self._open is None:
                    self._open, self._since = [], now
                if isinstance(request, AddOffsetsToTxnRequest):
                    return SimpleNamespace(error_code=code)
                errors = [(topic, [(place, code) for place in places]) for topic, places in request._topics]
                return SimpleNamespace(errors=errors)
            case TxnOffsetCommitRequest():
                return SimpleNamespace(
                    errors=[(topic, [(p, code) for p, _, _ in places]) for topic, places in request._topics]
                )
            case EndTxnRequest():
                return SimpleNamespace(error_code=code or self._end(request._transaction_result))
        raise NotImplementedError(request)

    def _write(self, batch: Any) -> int:
        if batch.producer_epoch != self._epoch:
            return int(InvalidProducerEpoch.errno)
        if batch.base_sequence < self._sequence:
            return 0
        if self._open is None:
            return int(InvalidTxnState.errno)
        records = [bytes(record.value) for record in batch]
        self._sequence += len(records)
        self._open += records
        return 0

    def _end(self, result: int) -> int:
        if self._open is None:
            return 0 if result == self._ended else int(InvalidTxnState.errno)
        if result:
            self.committed += self._open
        self._open, self._ended = None, result
        return 0


def settle(future: asyncio.Future[Any], result: object) -> None:
    if not future.done():
        future.set_result(result)


def client_in(world: World) -> type[LogClient]:
    """The client library's part that speaks with brokers, for the one of this world."""

    class Client(LogClient):
        async def bootstrap(self) -> None:
            place = (0, RESULTS.full_name("test"), False, [(0, partition, 1, [1], [1]) for partition in range(64)])
            metadata = SimpleNamespace(
                API_VERSION=1, brokers=[(1, "a", 1, None)], controller_id=1, topics=[place], cluster_id="c"
            )
            self.cluster.update_metadata(metadata)

        async def coordinator_lookup(self, *_: Any) -> int:
            return 1

        async def ready(self, *_: Any, **__: Any) -> bool:
            return True

        def force_metadata_update(self) -> asyncio.Future[bool]:
            updated: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            world.later(WAY_S, lambda: settle(updated, True))
            return updated

        async def send(self, node_id: Any, request: Any, **_: Any) -> Any:
            answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

            def arrive() -> None:
                answer = world.broker.answer(request, world.now)
                world.later(WAY_S, lambda: settle(answered, answer))

            world.later(WAY_S, arrive)
            try:
                async with asyncio.timeout(REQUEST_S):
                    return await answered
            except TimeoutError:
                raise RequestTimedOutError from None

    return Client


async def decide_all(world: World) -> int:
    """What a coordinator does: decides upon what is not committed; on its errors what it does. Returns its terms."""
    for term in itertools.count(1):
        producer = Producer(SETTINGS, client_id="c", transactional_id="test.coordinator")
        try:
            await producer.start()
            left = [item for item in INPUTS if item not in world.broker.committed]
            while left:
                try:
                    async with producer.transaction():
                        for item in left[:AT_ONCE]:
                            await producer.send_raw(RESULTS, "k", item, partition=0)
                        await producer.send_offsets({("results", 0): 5}, "group")
                except Exception as error:
                    if not is_input_error(error):
                        raise
                    continue
                left = left[AT_ONCE:]
        except BusError:
            assert term < 10, "no end of it"
        else:
            return term
        finally:
            await producer.stop()
    raise AssertionError


def run(monkeypatch: pytest.MonkeyPatch, world: World) -> int:
    """Returns how many terms it took."""
    runner = asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(world))
    with monkeypatch.context() as patch, runner:
        patch.setattr(producer_module, "AIOKafkaClient", client_in(world))
        patch.setattr(time, "monotonic", lambda: world.now)
        clock = awake.SteadyClock(awake.LOOK_S)
        patch.setattr(awake, "now", lambda: clock.advance(world.now))
        loop = runner.get_loop()
        faults: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, context: faults.append(context))
        patch.setattr(loop, "time", lambda: world.now)
        terms = runner.run(decide_all(world))
    assert not faults
    return terms


def test_without_a_freeze_one_term_does(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    assert run(monkeypatch, world) == 1
    assert world.broker.committed == INPUTS


@pytest.mark.parametrize("late_expiry", [False, True], ids=["aborted first", "asked first"])
@pytest.mark.parametrize(
    ("seconds", "broker", "later_s"),
    [
        (1.0, False, 0.0),
        (OUTAGE_S + 0.2, False, 0.0),
        (100.0, False, 0.0),
        (OUTAGE_S + 0.2, True, 0.0),
        (OUTAGE_S + 0.2, True, 2 * TURN_S),
        (OUTAGE_S + 0.2, True, 0.05),
        (OUTAGE_S + 0.2, True, 1.5),
        (1.0, True, OUTAGE_S + 3),
        (100.0, True, 20.0),
    ],
)
def test_a_freeze_at_any_turn_of_the_loop_doubles_and_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, seconds: float, broker: bool, later_s: float, late_expiry: bool
) -> None:
    calm = World()
    run(monkeypatch, calm)
    assert calm.turns > 50
    for turn in range(1, calm.turns + 1):
        freeze = Freeze(turn, seconds, broker, later_s)
        world = World([freeze], late_expiry=late_expiry)
        run(monkeypatch, world)
        assert world.broker.committed == INPUTS, freeze


def test_freezes_one_after_the_other_double_and_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(100):
        draw = random.Random(seed)  # noqa: S311 - a test's
        freezes = [
            Freeze(
                draw.randrange(1, 300),
                draw.choice([0.5, 4.0, OUTAGE_S - 0.001, OUTAGE_S + 0.2, 100.0]),
                draw.random() < 0.5,
                draw.choice([0.0, 2 * TURN_S, 0.05, 1.5, OUTAGE_S + 3]),
            )
            for _ in range(draw.randint(1, 4))
        ]
        world = World(freezes, late_expiry=draw.random() < 0.5)
        run(monkeypatch, world)
        assert world.broker.committed == INPUTS, (seed, freezes)
