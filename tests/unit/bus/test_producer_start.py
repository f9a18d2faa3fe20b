"""Starting a producer: a broker that is not ready yet for transactions is waited for as one that is away."""

import asyncio
from types import SimpleNamespace

import pytest

from trinity_bus.bus.write.producer import Producer
from trinity_bus.config import KafkaSettings
from trinity_bus.errors import BrokerUnreachableError

MADE: list["SlowClient"] = []


class SlowClient:
    """Stands for the client library's producer: the broker gives it a producer id only after a while."""

    def __init__(self, **_options: object) -> None:
        self.client = self
        self._message_accumulator = SimpleNamespace()
        MADE.append(self)

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


async def test_a_start_may_take_longer_than_one_request() -> None:
    kafka = settings(request_timeout_s=0.01, outage_s=60.0)
    async with Producer(kafka, client_id="test", transactional_id="test.taskset.t"):
        pass


async def test_what_is_sent_waits_for_a_leader_as_long_as_brokers_may_be_away() -> None:
    async with Producer(settings(request_timeout_s=10.0, outage_s=60.0), client_id="test"):
        assert MADE[-1]._message_accumulator._batch_ttl == 60.0


async def test_a_start_that_takes_longer_than_an_outage_may_is_given_up() -> None:
    kafka = settings(request_timeout_s=60.0, outage_s=0.01)
    with pytest.raises(BrokerUnreachableError, match=r"start producer test.taskset.t: no producer id in 0.01 s"):
        await Producer(kafka, client_id="test", transactional_id="test.taskset.t").start()
