"""The section ``broker``: the embedded one."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from trinity_bus.config.section import Section
from trinity_bus.config.values import Seconds


class BrokerSettings(Section):
    """The embedded broker, used if no other is configured."""

    port: Annotated[int, Field(ge=0, lt=1 << 16)] | None = None
    """Port on the loopback interface. 0: any free one. Unset: the last one of this data folder, else 9092 or any free
    one."""
    data_dir: Path | None = None
    """Folder of the log. Unset: ``trinity-bus/broker`` in ``XDG_DATA_HOME`` (``~/.local/share``)."""
    cache_dir: Path | None = None
    """Folder of downloads (Kafka's jars). Unset: ``trinity-bus`` in ``XDG_CACHE_HOME`` (``~/.cache``)."""
    heap_mib: Annotated[int, Field(ge=128)] = 512
    """Maximum Java heap, MiB. The operating system caches the log itself."""
    fsync: bool = False
    """Write each record to the disk before it is acknowledged. Without this, acknowledged records survive a crash of
    the broker but not of the machine."""
    start_timeout_s: Seconds = 120.0
    """Timeout of the broker's start."""
