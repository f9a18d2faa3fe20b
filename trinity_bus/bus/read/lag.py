"""Consumer lag of this process's readers, for whoever collects metrics.

Readers belong to no consumer group, so no broker knows their lag; each tells its own. A reader that is gone is
forgotten.
"""

import weakref
from collections import Counter
from collections.abc import Iterable
from typing import Protocol

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Observation

from trinity_bus.telemetry import conventions as names


class HasLag(Protocol):
    def lag(self) -> dict[str, int]: ...


_readers: weakref.WeakSet[HasLag] = weakref.WeakSet()


def watch_lag(reader: HasLag) -> None:
    _readers.add(reader)


def _observe(_options: CallbackOptions) -> Iterable[Observation]:
    total: Counter[str] = Counter()
    # Metrics are collected on a thread of their own, while readers come and go.
    for reader in list(_readers):
        total.update(reader.lag())
    return [
        Observation(lag, {names.MESSAGING_SYSTEM: "kafka", names.MESSAGING_DESTINATION_TEMPLATE: topic})
        for topic, lag in total.items()
    ]


metrics.get_meter("trinity_bus").create_observable_gauge(
    "trinity.consumer.lag", [_observe], unit="{message}", description="Records in the log and not yet read, by topic."
)
