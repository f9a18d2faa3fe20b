"""Produce one task with nothing but a Kafka client: `python produce.py [localhost:9092]`."""

import asyncio
import json
import sys
import uuid

from aiokafka import AIOKafkaProducer


async def main() -> None:
    """Send a task as JSON and print its id."""
    producer = AIOKafkaProducer(
        bootstrap_servers=sys.argv[1] if len(sys.argv) > 1 else "localhost:9092", enable_idempotence=True
    )
    await producer.start()
    try:
        task_id = f"py-{uuid.uuid4().hex[:8]}"
        task = {"task_id": task_id, "workflow": "math", "prompt": "What is 17 + 25?", "answer": "42"}
        await producer.send_and_wait("trinity.tasks", key=task_id.encode(), value=json.dumps(task).encode())
        print(task_id)
    finally:
        await producer.stop()


asyncio.run(main())
