"""The embedded broker: one real Apache Kafka node on this machine, used where no other broker is configured."""

from trinity_bus.broker.embedded import EmbeddedBroker, resolve_bootstrap

__all__ = ["EmbeddedBroker", "resolve_bootstrap"]
