"""The bus: reads and writes of Kafka topics. Imports no machine-learning framework."""

from trinity_bus.bus.bus import Bus
from trinity_bus.bus.dead_letters import dead_letter
from trinity_bus.bus.follower import TopicFollower
from trinity_bus.bus.partitioning import lane_partition, partition_of
from trinity_bus.bus.producer import Producer
from trinity_bus.bus.reader import Reader, Start
from trinity_bus.bus.received import Received, Undecodable
from trinity_bus.bus.requests import LogIdentity

__all__ = [
    "Bus",
    "LogIdentity",
    "Producer",
    "Reader",
    "Received",
    "Start",
    "TopicFollower",
    "Undecodable",
    "dead_letter",
    "lane_partition",
    "partition_of",
]
