"""The bus: reads and writes of Kafka topics. Imports no machine-learning framework."""

from trinity_bus.bus.administration.requests import LogIdentity
from trinity_bus.bus.bus import Bus
from trinity_bus.bus.partitioning import lane_partition, partition_of
from trinity_bus.bus.read.follower import TopicFollower
from trinity_bus.bus.read.reader import Reader, Start
from trinity_bus.bus.read.received import Received, Undecodable, dead_letter
from trinity_bus.bus.write.producer import Producer

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
