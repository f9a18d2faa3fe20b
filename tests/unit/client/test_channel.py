import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from schemas import CommandReply, FinalizeBatch, SubmitBatch
from schemas.command import AnyCommand
from schemas.topic import Topic
from schemas.topics import COMMANDS, REPLIES
from tests.support.fakes.coordinator import FakeCoordinator
from tests.support.fakes.log import FakeBus, FakeLog
from trinity_bus.client import CommandChannel, channel
from trinity_bus.errors import BusError, NoCoordinatorError


class Channel(CommandChannel):
    def __init__(self, bus: Any, **options: Any) -> None:
        super().__init__(bus, bus.producer(), name="test", **options)

    async def submit(self, batch_id: str = "b") -> CommandReply:
        return await self.ask(SubmitBatch, batch_id=batch_id, expected_task_count=1)


@pytest.mark.usefixtures("coordinator")
async def test_many_commands_are_under_way_at_once_and_each_gets_its_own_reply(bus: FakeBus) -> None:
    async with Channel(bus) as first, Channel(bus) as second:
        replies = await asyncio.gather(*(client.submit(f"b{n}") for n in range(50) for client in (first, second)))
        for n in range(50):
            pair = replies[2 * n : 2 * n + 2]
            assert [reply.client for reply in pair] == [first.client, second.client]
            assert {reply.batch_id for reply in pair} == {f"b{n}"}
            assert sorted(str(reply.error) for reply in pair) == ["None", "already_active"]


async def test_a_command_is_sent_again_and_carried_out_once(bus: FakeBus, coordinator: FakeCoordinator) -> None:
    coordinator.deaf = True
    async with Channel(bus, again_s=0.05) as client:
        asking = asyncio.create_task(client.submit())
        await coordinator.until(lambda: len(coordinator.commands) >= 3)
        coordinator.deaf = False
        assert (await asking).error is None
        assert len({command.command_id for command in coordinator.commands}) == 1


async def test_a_broker_that_was_away_costs_nothing(log: FakeLog, bus: FakeBus, coordinator: FakeCoordinator) -> None:
    async with Channel(bus, again_s=0.05) as client:
        log.refuse_sends = 2
        assert (await client.submit()).error is None
        # More than once where the reply was slow, but always the same.
        assert len({(type(command), command.command_id) for command in coordinator.commands}) == 1


async def test_replies_are_read_on_after_a_reader_has_broken(log: FakeLog, bus: FakeBus) -> None:
    async with Channel(bus, again_s=0.05) as client:
        asking = asyncio.create_task(client.submit())
        await asyncio.sleep(0)
        log.refuse_reads = 1
        async with log.grown:
            log.grown.notify_all()
        await asyncio.sleep(0)
        await log.reads_refused.wait()
        async with FakeCoordinator(bus).running():
            assert (await asking).error is None


async def test_silence_is_an_error_that_names_the_fix(bus: FakeBus) -> None:
    async with Channel(bus, again_s=0.02, silence_s=0.1) as client:
        with pytest.raises(NoCoordinatorError, match=r"'fake'.*trinity-bus run coordinator.*command.submit_batch 'b'"):
            await client.submit()


async def test_a_long_wait_is_no_silence_while_a_coordinator_answers_and_one_when_it_dies(bus: FakeBus) -> None:
    async with Channel(bus, again_s=0.05, silence_s=1.0) as client:
        async with FakeCoordinator(bus).running() as coordinator:
            await client.submit()
            waiting = asyncio.create_task(client.ask(FinalizeBatch, batch_id="b"))
            # Far longer than the silence that is borne.
            await coordinator.until(lambda: len(coordinator.commands) >= 30)
            assert not waiting.done()
            assert len({c.command_id for c in coordinator.commands if isinstance(c, FinalizeBatch)}) == 1
        with pytest.raises(NoCoordinatorError):
            await waiting


@pytest.mark.usefixtures("coordinator")
async def test_replies_to_others_and_to_commands_that_nobody_waits_for_are_passed_over(bus: FakeBus) -> None:
    async with Channel(bus) as client:
        for name in ("somebody", client.client):
            reply = CommandReply(client=name, command_id=f"{client.client}/77", batch_id="b")
            await bus.producer().send(REPLIES, name, reply)
        await bus.producer().send_raw(REPLIES, "x", b"not a reply")
        assert (await client.submit()).error is None


@pytest.mark.usefixtures("coordinator")
async def test_a_caller_that_waits_when_the_channel_closes_is_told(bus: FakeBus) -> None:
    async with Channel(bus) as client:
        await client.submit()
        waiting = asyncio.create_task(client.ask(FinalizeBatch, batch_id="b"))
        await asyncio.sleep(0)
    with pytest.raises(BusError, match="shut down"):
        await waiting


class Timed(CommandChannel):
    """By a clock that stands still but while it waits: a coordinator is heard, and the broker takes commands from."""

    def __init__(self, bus: Any, heard: Sequence[float], takes_from: float) -> None:
        super().__init__(bus, bus.producer(), name="test", again_s=5.0, silence_s=30.0, clock=lambda: self.now)
        self.now = 0.0
        self.heard, self.takes_from = heard, takes_from
        self.sent: list[float] = []

    async def _send(self, command: AnyCommand, topic: Topic = COMMANDS) -> BusError | None:
        self.sent.append(self.now)
        return None if self.now >= self.takes_from else BusError("away")

    async def wait(self, answered: Sequence[asyncio.Future[Any]], pause_s: float) -> None:
        assert 0 <= pause_s <= 5.0
        self.now += pause_s
        self._heard_at = max((at for at in self.heard if at <= self.now), default=None)


@pytest.mark.parametrize(
    ("heard", "takes_from", "ends"),
    [
        ([], 0.0, 30.0),
        ([11.0, 25.0], 0.0, 55.0),
        ([], 99.0, 60.0),
        # It is back: the coordinator has all its time to answer.
        ([], 50.0, 80.0),
        ([3.0], 50.0, 80.0),
        ([52.0], 50.0, 82.0),
    ],
)
async def test_a_command_is_sent_again_until_the_coordinator_or_the_broker_was_silent_for_too_long(
    bus: FakeBus, monkeypatch: pytest.MonkeyPatch, heard: Sequence[float], takes_from: float, ends: float
) -> None:
    client = Timed(bus, heard, takes_from)
    monkeypatch.setattr(channel, "awake", SimpleNamespace(wait=client.wait))
    with pytest.raises(NoCoordinatorError):
        await client.ask(SubmitBatch, batch_id="b", expected_task_count=1)
    assert client.now == ends
    assert client.sent == [5.0 * number for number in range(len(client.sent))]
    assert client.sent[-1] == ends - (ends % 5 or 5)
