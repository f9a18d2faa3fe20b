import asyncio
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.producer.transaction_manager import TransactionManager
from aiokafka.structs import OffsetAndMetadata
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from schemas.event import ExplorerLeft, Position
from schemas.task import Task
from schemas.topics import EXPLORER_EVENTS, TASKS, TOPICS
from tests.support.spans import recorded_spans
from trinity_bus.bus.client.internals import waits_for
from trinity_bus.bus.partitioning import MOMENT_BYTES, MOMENT_S, SETTLE_S, StickyPartitions
from trinity_bus.bus.write.delivery import end_send_span, start_send_span
from trinity_bus.bus.write.outages import TOLD_S, WriteWait, commit, still_to_do
from trinity_bus.bus.write.producer import Producer
from trinity_bus.config import KafkaSettings
from trinity_bus.errors import BrokerUnreachableError, BusError, SendError


class SlowClient:
    """Stands for the client library's producer: the broker gives it a producer id only after a while."""

    def __init__(self, **_options: object) -> None:
        self.client = self
        self._message_accumulator = SimpleNamespace(_pending_batches=set(), _batches={})

    async def start(self) -> None:
        # The time itself is what is tested.
        await asyncio.sleep(0.05)

    async def stop(self) -> None:
        pass

    def abort_closing(self) -> None:
        pass

    def end(self) -> None:
        pass


@pytest.fixture(autouse=True)
def _slow_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trinity_bus.bus.write.producer_client.AIOKafkaProducer", SlowClient)


def settings(*, request_timeout_s: float, outage_s: float) -> KafkaSettings:
    return KafkaSettings(bootstrap_servers="a:1", request_timeout_s=request_timeout_s, outage_s=outage_s)


async def test_a_start_may_take_longer_than_one_request_and_no_longer_than_an_outage() -> None:
    kafka = settings(request_timeout_s=0.01, outage_s=60.0)
    async with Producer(kafka, client_id="test", transactional_id="test.taskset.t"):
        pass
    kafka = settings(request_timeout_s=60.0, outage_s=0.01)
    with pytest.raises(BrokerUnreachableError, match=r"start producer test.taskset.t: no producer id in 0.01 s"):
        await Producer(kafka, client_id="test", transactional_id="test.taskset.t").start()


LOOKS = round(TOLD_S)


def test_the_same_thing_that_waits_for_long_is_told_once_and_so_is_its_end() -> None:
    wait, batch = WriteWait("explorer-0", 60.0), object()
    assert [wait.look(batch, "1 batch") for _ in range(LOOKS)] == [None] * LOOKS
    assert wait.reason is None
    assert wait.look(batch, "1 batch") == (
        "producer explorer-0: a record has waited for 10 s (1 batch); do as many brokers run as must have it "
        "(min.insync.replicas)? It waits for up to 60 s"
    )
    assert [wait.look(batch, "1 batch") for _ in range(5)] == [None] * 5
    assert "15 s" in (wait.reason or "")
    assert not wait.is_over
    assert wait.look(None, "") == "producer explorer-0: what waited is durable, after 15 s"
    assert (wait.reason, wait.look(None, "")) == (None, None)


def test_a_producer_waits_for_as_long_as_it_may_and_not_while_it_writes_one_thing_after_the_other() -> None:
    wait = WriteWait("explorer-0", 60.0)
    assert {wait.look(thing, "") for thing in [object() for _ in range(100)]} == {None}
    assert wait.seconds == 0
    wait, batch = WriteWait("explorer-0", 3.0), object()
    for _ in range(3):
        wait.look(batch, "")
        assert not wait.is_over
    wait.look(batch, "")
    assert wait.is_over


async def test_what_a_transaction_waits_for_is_told_in_the_order_in_which_it_is_done() -> None:
    manager = TransactionManager("test.coordinator", 60_000)
    accumulator = SimpleNamespace(_batches={}, _pending_batches=set())
    client = SimpleNamespace(_txn_manager=manager, _message_accumulator=accumulator)
    place = TopicPartition("test.explorer-events", 0)
    manager.set_pid_and_epoch(1, 0)
    manager.begin_transaction()
    assert (waits_for(client), still_to_do(client)) == (None, "nothing left to be done")
    manager.maybe_add_partition_to_txn(place)
    accumulator._batches[place] = [SimpleNamespace(_ctime=0.0)]
    manager.add_offsets_to_txn({place: OffsetAndMetadata(5, "")}, "test.coordinator")
    left = "batches to be written (1), offsets of groups to be committed (1)"
    assert still_to_do(client) == f"partitions to be added to a transaction (1), {left}"
    manager.partition_added(place)
    accumulator._batches.clear()
    # Offsets that are not committed are what is waited for: there is no batch left, and its end is not asked for yet.
    manager.consumer_group_added("test.coordinator")
    waited_for = waits_for(client)
    assert waited_for is not None
    assert waits_for(client) is waited_for
    manager.offset_committed(place, 5, "test.coordinator")
    assert waits_for(client) is None
    manager.committing_transaction()
    assert waits_for(client) not in (None, waited_for)
    assert still_to_do(client) == "the end of a transaction to be confirmed (1)"


class SlowCommit:
    """Stands for the client library's producer: its commit takes until ``answer`` is set."""

    def __init__(self) -> None:
        self.answer = asyncio.Event()
        self.committed = False

    async def commit_transaction(self) -> None:
        await self.answer.wait()
        self.committed = True


async def test_a_cancelled_commit_is_waited_for() -> None:
    client = SlowCommit()
    committing = asyncio.create_task(commit(client, 60))
    for _ in range(3):
        await asyncio.sleep(0)
        committing.cancel()
        await asyncio.sleep(0)
        assert not committing.done()
    client.answer.set()
    with pytest.raises(asyncio.CancelledError):
        await committing
    assert client.committed


async def test_one_who_is_told_to_stop_does_not_wait_for_a_broker_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trinity_bus.bus.write.outages.CANCELLED_S", 0.01)
    committing = asyncio.create_task(commit(SlowCommit(), 60))
    await asyncio.sleep(0)
    committing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await committing


async def test_an_outcome_that_stays_unknown_is_told() -> None:
    with pytest.raises(BusError, match=r"commit the transaction: no answer in .* start this producer anew"):
        await commit(SlowCommit(), 0.01)


def test_what_comes_within_a_moment_goes_together_and_the_next_moment_elsewhere() -> None:
    sticky = StickyPartitions(8, first=3)
    first = {sticky.place(100, 1.0 + MOMENT_S * share, lambda: 8) for share in (0.0, 0.5, 0.9)}
    second = sticky.place(100, 1.0 + MOMENT_S, lambda: 8)
    assert len(first) == 1
    assert second not in first


def test_all_partitions_get_the_same_large_records_at_once_and_producers_begin_at_different_ones() -> None:
    sticky = StickyPartitions(8, first=5)
    counts = Counter(sticky.place(100, moment * MOMENT_S * 1.01, lambda: 8) for moment in range(800))
    assert counts == dict.fromkeys(range(8), 100)
    sticky = StickyPartitions(4, first=0)
    assert len({sticky.place(MOMENT_BYTES, 1.0, lambda: 4) for _ in range(4)}) == 4
    assert {StickyPartitions(8, first).place(1, 0.0, lambda: 8) for first in range(8)} == set(range(8))
    assert {topic.name for topic in TOPICS if topic.any_partition} == {"experiences", "results"}


def test_partitions_that_are_added_are_used_when_every_broker_knows_them() -> None:
    sticky = StickyPartitions(2, first=0)
    before = {sticky.place(1, now / 10, lambda: 4) for now in range(round(SETTLE_S * 10))}
    assert before == {0, 1}
    assert {sticky.place(1, SETTLE_S + now / 10, lambda: 4) for now in range(8)} == {0, 1, 2, 3}
    # None is ever taken away: a broker that lags behind says less for a moment.
    assert {sticky.place(1, SETTLE_S + 1 + now / 10, lambda: 2) for now in range(8)} == {0, 1, 2, 3}


SENT: dict[str, Any] = {"full_name": "trinity.tasks", "client_id": "me", "key": "t1", "parent": None}
SAID = {
    "messaging.system": "kafka",
    "messaging.operation.name": "send",
    "messaging.operation.type": "send",
    "messaging.destination.name": "trinity.tasks",
    "messaging.destination.template": "tasks",
    "messaging.client.id": "me",
    "messaging.kafka.message.key": "t1",
    "rl.task.id": "t1",
    "rl.batch.type": "train",
}


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    with recorded_spans(monkeypatch, "trinity_bus.bus.write.delivery") as exporter:
        yield exporter


@pytest.mark.parametrize(
    ("position", "error", "status", "more"),
    [
        (
            Position(partition=3, offset=9),
            None,
            (StatusCode.UNSET, None),
            {"messaging.destination.partition.id": "3", "messaging.kafka.offset": 9},
        ),
        (None, SendError("no room"), (StatusCode.ERROR, "no room"), {"error.type": "SendError"}),
    ],
)
def test_a_sent_task_has_a_span_with_its_place_or_its_error_and_an_event_none(
    spans: InMemorySpanExporter, position: Any, error: Any, status: tuple[Any, Any], more: dict[str, Any]
) -> None:
    assert start_send_span(EXPLORER_EVENTS, record=ExplorerLeft(explorer="e", incarnation="i"), **SENT) is None
    span = start_send_span(TASKS, record=Task(task_id="t1", workflow="math", prompt="1 + 1"), **SENT)
    assert span is not None
    end_send_span(span, position, error)
    (ended,) = spans.get_finished_spans()
    assert (ended.name, ended.kind) == ("send tasks", SpanKind.PRODUCER)
    assert (ended.status.status_code, ended.status.description) == status
    assert dict(ended.attributes or {}) == SAID | more
