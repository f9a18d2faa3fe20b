"""Submit a batch of two tasks and wait for its result, with a Kafka client and msgpack alone.

`python batch.py [localhost:9092] [namespace] [batch id]`
"""

import asyncio
import json
import sys
import uuid
from typing import Any

import msgpack
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

DEFAULTS = ("localhost:9092", "trinity", f"py-{uuid.uuid4().hex[:8]}")
SERVER, NAMESPACE, BATCH = (*sys.argv[1:], *DEFAULTS[len(sys.argv) - 1 :])
ME = f"batch.py-{uuid.uuid4().hex[:8]}"


class Coordinator:
    """Sends commands and waits for their replies."""

    def __init__(self, producer: AIOKafkaProducer, replies: AIOKafkaConsumer) -> None:
        self._producer = producer
        self._replies = replies
        self._count = 0

    async def ask(self, command: str, **fields: Any) -> dict[str, Any]:
        """Send a command and return its reply."""
        self._count += 1
        command_id = f"{ME}/{self._count}"
        record = {"schema": f"command.{command}", "client": ME, "command_id": command_id, "batch_id": BATCH, **fields}
        await self._producer.send_and_wait(f"{NAMESPACE}.commands", json.dumps(record).encode(), BATCH.encode())
        async for message in self._replies:
            reply: dict[str, Any] = msgpack.unpackb(message.value)
            if reply["command_id"] == command_id:
                if "error" in reply:
                    raise SystemExit(f"{reply['error']}: {reply['detail']}")
                return reply
        raise SystemExit("the replies have ended")


async def main() -> None:
    """Submit, send, finalize."""
    producer = AIOKafkaProducer(bootstrap_servers=SERVER, enable_idempotence=True)
    # No consumer group, and the position fixed before the first command: its reply cannot be missed.
    replies = AIOKafkaConsumer(bootstrap_servers=SERVER, isolation_level="read_committed", group_id=None)
    await producer.start()
    await replies.start()
    try:
        partition = TopicPartition(f"{NAMESPACE}.replies", 0)
        replies.assign([partition])
        await replies.seek_to_end(partition)
        await replies.position(partition)

        coordinator = Coordinator(producer, replies)
        await coordinator.ask("submit_batch", expected_task_count=2)
        for number in range(2):
            task_id = f"{BATCH}/{number}"
            task = {"task_id": task_id, "batch_id": BATCH, "batch_size": 2, "workflow": "math"}
            task |= {"prompt": f"What is {number} + 25?", "answer": str(number + 25)}
            await producer.send_and_wait(f"{NAMESPACE}.tasks", json.dumps(task).encode(), task_id.encode())
        reply = await coordinator.ask("finalize_batch", timeout_s=600)
        print(json.dumps(reply["result"]))
    finally:
        await replies.stop()
        await producer.stop()


asyncio.run(main())
