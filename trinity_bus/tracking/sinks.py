"""From the log into the ledger, and from its lines into sinks, each with its own way of telling how many it has.

===================  ==================================================================================================
what                 how many lines it has, and what becomes of a torn end
===================  ==================================================================================================
TensorBoard          an event for each line, all in one folder: events are counted when it is opened, each file up to
                     its first damaged record, which readers pass over; a new file takes the rest
Weights & Biases     a row for each line, numbered by it. Online a run is resumed, and its server says the last row.
                     Offline nobody can be asked: the folder of the run is written anew from the ledger
MLflow               a value of each metric for each line. The run's tag says how many lines it has; it is set behind
                     them, and a value that is written again is the one that is there
trackio              a row for each line, numbered by it, in a SQLite file: rows are counted, and one that is written
                     again is passed over
===================  ==================================================================================================

Their packages are imported when they are asked for.

``track`` does this until it is cancelled or has come to the end. Retention may have deleted records before the tracker
came to them: how many is told. A broker that is away for longer than ``kafka.outage_s`` ends it; it goes on where it
was when it is started again.
"""

import asyncio
import hashlib
import logging
import os
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import batched
from pathlib import Path
from typing import Any, Final

from trinity_bus.bus import Bus
from trinity_bus.bus.read.offsets import readable
from trinity_bus.tracking.metrics_ledger import TOPICS, MetricsLedger, MetricsLedgerError, MetricsLine, line_of

_MLFLOW_METRICS: Final = 1000  # That MLflow takes at once
_MLFLOW_NAME: Final = 250  # Characters of a metric's name there
_NOT_OF_A_NAME: Final = re.compile(r"[^\w\-. :/]")


class Sink(ABC):
    """Takes lines of the ledger, in order."""

    lines: int  # How many it has

    @abstractmethod
    def write(self, lines: Sequence[MetricsLine]) -> None: ...

    @abstractmethod
    def close(self) -> None:
        """Let go of it."""


class TensorBoard(Sink):
    """Event files of a folder, in which nothing else writes."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = Event, Summary
        self.lines = 0
        for file in sorted(folder.glob("events.out.tfevents.*")):
            # The first record of a file says of which version it is.
            records = (Event.FromString(raw) for raw in RawEventFileLoader(str(file)).Load())
            self.lines += sum(record.HasField("summary") for record in records)
        self._writer = EventFileWriter(str(folder), filename_suffix=f".{self.lines:012d}")

    def write(self, lines: Sequence[MetricsLine]) -> None:
        for line in lines:
            values = [self._summary.Value(tag=name, simple_value=value) for name, value in line.metrics.items()]
            self._writer.add_event(self._event(wall_time=line.at, step=line.step, summary=self._summary(value=values)))
        self._writer.flush()
        self.lines += len(lines)

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases(Sink):
    """A run of Weights & Biases; ``WANDB_MODE=offline`` keeps it in a folder, for ``wandb sync``."""

    def __init__(self, folder: Path, project: str, run: str) -> None:
        import wandb

        offline = os.environ.get("WANDB_MODE") == "offline"
        if offline and folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._run: Any = wandb.init(project=project, id=run, dir=str(folder), resume=None if offline else "allow")
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        self.lines = 0 if offline else self._run.step

    def write(self, lines: Sequence[MetricsLine]) -> None:
        for line in lines:
            self._run.log({**line.metrics, "step": line.step, "at": line.at}, step=self.lines)
            self.lines += 1

    def close(self) -> None:
        self._run.finish()


class MLflow(Sink):
    """A run of MLflow: where ``MLFLOW_TRACKING_URI`` says, else in a SQLite file for ``mlflow server``."""

    _LINES: Final = "trinity_bus.lines"
    _RUN: Final = "trinity_bus.run"

    def __init__(self, folder: Path, experiment: str, run: str) -> None:
        # It would tell its makers that it is used.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow import MlflowClient
        from mlflow.entities import Metric

        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if uri is None:
            folder.mkdir(parents=True, exist_ok=True)
            uri = f"sqlite:///{folder.resolve() / 'mlflow.db'}"
        self._metric = Metric
        self._client: Any = MlflowClient(tracking_uri=uri)
        found = self._client.get_experiment_by_name(experiment)
        of = self._client.create_experiment(experiment) if found is None else found.experiment_id
        runs = self._client.search_runs([of], filter_string=f"tags.`{self._RUN}` = '{run}'", max_results=1)
        self._run = runs[0] if runs else self._client.create_run(of, run_name=run, tags={self._RUN: run})
        self.lines = int(self._run.data.tags.get(self._LINES, 0))

    def write(self, lines: Sequence[MetricsLine]) -> None:
        for metrics in batched(self._metrics(lines), _MLFLOW_METRICS):
            self._client.log_batch(self._run.info.run_id, metrics=metrics)
        self.lines += len(lines)
        self._client.set_tag(self._run.info.run_id, self._LINES, str(self.lines))

    def close(self) -> None:
        """Leave the run going: nobody knows whether the mesh has ended."""

    def _metrics(self, lines: Sequence[MetricsLine]) -> Iterator[Any]:
        for line in lines:
            for name, value in line.metrics.items():
                yield self._metric(mlflow_name(name), value, round(line.at * 1000), line.step)


class Trackio(Sink):
    """A run of trackio: in the folder of ``TRACKIO_DIR``, else in one of its own, for ``trackio show``."""

    def __init__(self, folder: Path, project: str, run: str) -> None:
        own = str(folder.resolve())
        # It looks there when it is imported.
        if os.environ.setdefault("TRACKIO_DIR", own) == own:
            self._id = run
        else:
            # Ledgers in other folders have runs of the same name there.
            self._id = f"{run}-{hashlib.sha256(own.encode()).hexdigest()[:16]}"
        from trackio.sqlite_storage import SQLiteStorage

        SQLiteStorage.validate_project_name(project)
        # Its own log() has a thread of its own, which drops what it cannot write.
        self._store: Any = SQLiteStorage
        self._project, self._run = project, run
        self.lines = SQLiteStorage.get_log_count(project, run_id=self._id)

    def write(self, lines: Sequence[MetricsLine]) -> None:
        self._store.bulk_log(
            self._project,
            self._run,
            [line.metrics for line in lines],
            steps=[line.step for line in lines],
            timestamps=[datetime.fromtimestamp(line.at, UTC).isoformat() for line in lines],
            log_ids=[f"{self._id}/{number}" for number in range(self.lines, self.lines + len(lines))],
            run_id=self._id,
        )
        self.lines += len(lines)

    def close(self) -> None:
        """Let go of nothing: its file is open while it is written."""


def mlflow_name(name: str) -> str:
    """Return a metric's name as MLflow takes it.

    >>> mlflow_name("rollout/reward/mean"), mlflow_name("/a//../b{c}")
    ('rollout/reward/mean', 'a/_/b_c_')
    """
    known = _NOT_OF_A_NAME.sub("_", name)
    parts = (("_" if set(part) <= {"."} else part) for part in known.split("/") if part)
    return "/".join(parts)[:_MLFLOW_NAME].rstrip("/") or "_"


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
