import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import CommandReply, FinalizeBatch, SubmitBatch
from schemas.topics import REPLIES
from tests.support.fakes.coordinator import FakeCoordinator
from tests.support.fakes.log import FakeBus, FakeLog
from trinity_bus.client import CommandChannel
from trinity_bus.client.channel import RetryPolicy, RetryStep
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
        with pytest.raises(NoCoordinatorError, match="'fake'.*trinity-bus run coordinator.*command.submit_batch 'b'"):
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


def retry(*, taken: bool = True) -> RetryPolicy:
    return RetryPolicy(0.0, taken=taken, again_s=5.0, silence_s=30.0, outage_s=60.0)


def test_a_command_is_sent_again_until_the_coordinator_or_the_broker_was_silent_for_too_long() -> None:
    one = retry()
    steps = []
    for now in range(0, 31, 5):
        steps.append(one.step(now, None))
        if steps[-1] is RetryStep.AGAIN:
            one.sent(now, taken=True)
    assert steps == [RetryStep.WAIT, *[RetryStep.AGAIN] * 5, RetryStep.GIVE_UP]
    one = retry()
    assert one.step(29.0, None) is RetryStep.AGAIN
    one.sent(29.0, taken=True)
    assert one.step(31.0, 25.0) is RetryStep.WAIT
    assert one.step(54.9, 25.0) is RetryStep.AGAIN
    assert one.step(55.0, 25.0) is RetryStep.GIVE_UP
    one = retry(taken=False)
    assert one.step(59.0, None) is RetryStep.AGAIN
    one.sent(59.0, taken=False)
    assert one.step(60.0, None) is RetryStep.GIVE_UP
    one.sent(59.5, taken=True)
    # It is back: the coordinator has all its time to answer.
    assert one.step(60.0, None) is RetryStep.WAIT
    assert one.step(89.4, None) is RetryStep.AGAIN
    assert one.step(89.5, None) is RetryStep.GIVE_UP


@given(moments=st.lists(st.tuples(st.integers(0, 10), st.booleans(), st.booleans()), max_size=60), taken=st.booleans())
def test_each_wait_has_a_next_moment_and_an_end(moments: list[tuple[int, bool, bool]], taken: bool) -> None:
    one, now, heard_at, last = retry(taken=taken), 0.0, None, 0.0
    for gap, hears, is_taken in moments:
        now += gap
        if hears:
            heard_at = last = now
        step = one.step(now, heard_at)
        if step is RetryStep.WAIT:
            assert 0 < one.pause(now, heard_at) <= 5.0
        elif step is RetryStep.AGAIN:
            one.sent(now, taken=is_taken)
        else:
            assert now >= last + 30.0
            assert one.pause(now, heard_at) == 0
            return
    # However often it is sent again, silence ends it.
    assert one.step(now + 200.0, heard_at) is RetryStep.GIVE_UP
