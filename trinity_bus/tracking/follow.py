"""Reads the log into the ledger, and the ledger into all else, until it is cancelled or has come to the end.

Retention may have deleted records before the tracker came to them: how many is told. A broker that is away for longer
than ``kafka.outage_s`` ends it; it goes on where it was when it is started again.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from itertools import batched
from pathlib import Path
from typing import Final

from trinity_bus.bus import Bus
from trinity_bus.bus.read.offsets import readable
from trinity_bus.tracking.metrics_ledger import MetricsLedger, MetricsLedgerError
from trinity_bus.tracking.sinks import Sink
from trinity_bus.tracking.table import TOPICS, line_of

log = logging.getLogger(__name__)

_MAX_RECORDS: Final = 500
_WAIT_S: Final = 1.0


async def track(bus: Bus, folder: Path, open_sinks: Callable[[], Sequence[Sink]], *, once: bool = False) -> int:
    """Write metrics as they come; return how many lines the ledger has. ``once``: end at the end of the log."""
    ids = {topic.name: await bus.identity(topic) for topic in TOPICS}
    with MetricsLedger(folder, {name: f"{one.cluster}/{one.topic}" for name, one in ids.items()}) as ledger:
        sinks = await asyncio.to_thread(open_sinks)
        try:
            await _follow(bus, ledger, sinks, once=once)
        finally:
            for sink in sinks:
                await asyncio.to_thread(sink.close)
        return ledger.lines


async def _follow(bus: Bus, ledger: MetricsLedger, sinks: Sequence[Sink], *, once: bool) -> None:
    found = await readable(bus, TOPICS, ledger.positions)
    if found.beyond:
        raise MetricsLedgerError(f"the log ends before what {ledger.path} has of it: {found.beyond[0]}")
    if found.lost:
        log.warning("retention has deleted %d records before they were read", found.lost)
    await asyncio.to_thread(_bring_up, ledger, sinks)
    async with bus.reader(*TOPICS, start=found.positions, max_records=_MAX_RECORDS) as reader:
        while True:
            records = await reader.batch(_WAIT_S)
            lines = [line for record in records if (line := line_of(record)) is not None]
            if lines:
                await asyncio.to_thread(ledger.append, lines)
                for sink in sinks:
                    await asyncio.to_thread(sink.write, lines)
            if once and not records and await reader.is_at_end():
                return


def _bring_up(ledger: MetricsLedger, sinks: Sequence[Sink]) -> None:
    for sink in sinks:
        if sink.lines > ledger.lines:
            raise MetricsLedgerError(f"{sink.lines} lines were written of a ledger of {ledger.lines}: {ledger.path}")
        for lines in batched(ledger.since(sink.lines), _MAX_RECORDS):
            sink.write(lines)
