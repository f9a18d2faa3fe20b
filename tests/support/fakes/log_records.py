"""Records as a reader would return them, without a log: what they say, where they would lie, and when."""

from collections import Counter
from typing import Any

from benchmarks._records import named_group
from schemas import ExperienceGroup, Rollout, build_group
from schemas.topic import Topic
from schemas.topics import ALL_DEAD_LETTERS
from tests.support.fakes.received import received
from trinity_bus.bus import Received
from trinity_bus.console.index.follower import TOPICS

_TOPIC_OF = {kind: topic for topic in TOPICS if topic not in ALL_DEAD_LETTERS for kind in topic.records}


class LogRecords:
    """Stands in for a reader of all topics: keeps what is added to it until it is taken, and counts offsets."""

    def __init__(self) -> None:
        self._ends: Counter[tuple[str, int]] = Counter()
        self._added: list[Received[Any]] = []

    def add(
        self,
        record: Any,
        at: float,
        *,
        topic: Topic | None = None,
        partition: int = 0,
        **fields: Any,
    ) -> Received[Any]:
        topic = topic or _TOPIC_OF[type(record)]
        offset = self._ends[topic.name, partition]
        self._ends[topic.name, partition] += 1
        made = received(record, topic, offset, partition=partition, **{"timestamp_ms": round(at * 1000)} | fields)
        self._added.append(made)
        return made

    def take(self) -> tuple[list[Received[Any]], dict[tuple[str, int], int]]:
        added, self._added = self._added, []
        return added, dict(self._ends)


def group(task_id: str, rewards: list[float], *, version: int = 1, **fields: Any) -> ExperienceGroup:
    """A group with a sample for each reward, of a prompt of three tokens and a response of two."""
    rollouts = [
        Rollout(prompt_token_ids=[1, 2, 3], response_token_ids=[4, 5 + i], logprobs=[-0.5, -1.5], reward=reward)
        for i, reward in enumerate(rewards)
    ]
    return build_group(rollouts, version=version, **named_group(task_id, "train-1", **{"workflow": "copy"} | fields))
