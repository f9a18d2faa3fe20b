"""Gauges of the cluster's health, for whoever collects metrics. Coordinators keep them.

::

    UNKNOWN --look--> KNOWN --look--> KNOWN ...
       ^---- BusError ---'       nothing is told of a cluster that does not answer, rather than what was true before

``ClusterObserver`` looks, every ``EVERY_S``. A folder of this process's own needs no broker: what its disk has is read
whenever metrics are collected.
"""

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Protocol

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Observation

from trinity_bus.bus.administration.cluster import ClusterObserver, ClusterState, Disk
from trinity_bus.errors import BusError
from trinity_bus.telemetry import conventions as names
from trinity_bus.telemetry.metrics import of_topic

log = logging.getLogger(__name__)

# between two looks: three requests to the cluster, one to each broker, a handshake with each that has TLS
EVERY_S = 15.0


class HasObserver(Protocol):
    async def cluster_observer(self) -> ClusterObserver: ...


class _Known:
    # Read by the thread that collects metrics; each part is replaced as a whole.
    def __init__(self) -> None:
        self.cluster = ClusterState()
        self.folders: Mapping[str, Path] = {}


_KNOWN = _Known()


def watch_folder(name: str, path: Path) -> None:
    """Report the disk that a folder of this process is on from now on, under a name such as ``"checkpoints"``."""
    _KNOWN.folders = {**_KNOWN.folders, name: path}


@asynccontextmanager
async def cluster_gauges(bus: HasObserver, *, every_s: float = EVERY_S) -> AsyncIterator[None]:
    """Report the cluster's health until the block ends."""
    task = asyncio.create_task(_look_again_and_again(bus, every_s), name="look at the cluster")
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        _KNOWN.cluster = ClusterState()


async def _look_again_and_again(bus: HasObserver, every_s: float) -> None:
    while True:
        try:
            _KNOWN.cluster = await (await bus.cluster_observer()).look()
        except (BusError, OSError) as error:
            # Who works with the log says so itself, and ends if this lasts.
            log.debug("the cluster does not tell how it is: %s", error)
            _KNOWN.cluster = ClusterState()
        await asyncio.sleep(every_s)


def _disks() -> dict[str, Disk]:
    found = dict(_KNOWN.cluster.disks)
    for name, path in _KNOWN.folders.items():
        # A folder that is not there yet has no disk.
        with suppress(OSError):
            usage = shutil.disk_usage(path)
            found[name] = Disk(usage.total, usage.free)
    return found


def _by_topic(values: Mapping[str, float]) -> Iterable[Observation]:
    return [Observation(value, of_topic(topic)) for topic, value in values.items()]


def _named(attribute: str, values: Mapping[str, float]) -> Iterable[Observation]:
    return [Observation(value, {attribute: name}) for name, value in values.items()]


_GAUGES: tuple[tuple[str, str, str, Callable[[], Iterable[Observation]]], ...] = (
    (
        "trinity.topic.under_replicated",
        "{partition}",
        "Partitions of which not every copy is up to date, by topic.",
        lambda: _by_topic(_KNOWN.cluster.under_replicated),
    ),
    ("trinity.topic.size", "By", "One copy of a topic's records.", lambda: _by_topic(_KNOWN.cluster.sizes)),
    (
        "trinity.disk.size",
        "By",
        "Of the disks of brokers and checkpoints.",
        lambda: _named(names.TRINITY_DISK, {name: disk.size for name, disk in _disks().items()}),
    ),
    (
        "trinity.disk.free",
        "By",
        "Free on the disks of brokers and checkpoints.",
        lambda: _named(names.TRINITY_DISK, {name: disk.free for name, disk in _disks().items()}),
    ),
    (
        "trinity.certificate.expiry",
        "s",
        "End of each certificate that brokers show or this process has, since the epoch.",
        lambda: _named(names.TRINITY_CERTIFICATE, _KNOWN.cluster.certificates),
    ),
)


def _observing(read: Callable[[], Iterable[Observation]]) -> Callable[[CallbackOptions], Iterable[Observation]]:
    return lambda _options: read()


_METER = metrics.get_meter("trinity_bus")
for _name, _unit, _description, _read in _GAUGES:
    _METER.create_observable_gauge(_name, [_observing(_read)], unit=_unit, description=_description)
