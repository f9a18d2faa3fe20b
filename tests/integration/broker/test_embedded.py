"""The embedded broker, for real: it serves, recovers, and never outlives its owner."""

import asyncio
import os
import signal
import socket
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from trinity_bus.broker import EmbeddedBroker
from trinity_bus.broker.errors import DataFolderInUseError, DataFolderUnusableError, PortInUseError
from trinity_bus.config import BrokerSettings, KafkaSettings

pytestmark = pytest.mark.integration


async def produce(servers: str, topic: str, values: list[bytes]) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, 1, 1)])
    finally:
        await admin.close()
    async with AIOKafkaProducer(bootstrap_servers=servers, enable_idempotence=True, acks="all") as producer:
        for value in values:
            await producer.send_and_wait(topic, value)


async def consume(servers: str, topic: str, count: int) -> list[bytes]:
    consumer = AIOKafkaConsumer(bootstrap_servers=servers, auto_offset_reset="earliest", enable_auto_commit=False)
    await consumer.start()
    try:
        consumer.assign([TopicPartition(topic, 0)])
        await consumer.seek_to_beginning()
        values: list[bytes] = []
        async with asyncio.timeout(20):
            while len(values) < count:
                for records in (await consumer.getmany(timeout_ms=500)).values():
                    values += [record.value for record in records]
        return values
    finally:
        await consumer.stop()


async def test_the_shared_broker_serves(kafka: KafkaSettings) -> None:
    assert kafka.bootstrap_servers is not None
    await produce(kafka.bootstrap_servers, "serves", [b"a", b"b"])
    assert await consume(kafka.bootstrap_servers, "serves", 2) == [b"a", b"b"]
