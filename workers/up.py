"""A mesh of one's own on this machine, from its settings to the end of the training.

::

    STARTING: broker, then all services --all explorers serve--> TRAINING --the training is done--> STOPPED, in order: 0
        |                                                           |
        '--Ctrl-C, SIGTERM, ``down``--> STOPPED, in order           '--a service is given up: ServiceDiedError

The training is done when the trainer has ended, or says that it is done, with its last step (``trainer.total_steps``),
or when the task set has ended, since all its tasks are answered, and all that they became is trained on. With neither
it goes on until Ctrl-C.

A service that has ended is started again, or given up, as ``trinity_bus.runtime.supervisor`` decides. Where the log
cannot be looked at for a while, the services are watched all the same, and the view goes on when it can.

A run's folder has ``mesh.toml``, which other commands can be given, ``logs``, ``up.lock``, which the process that runs
it holds, and ``broker`` where there is no cluster. Begun again in the same folder, a run goes on where its log ends.
"""

import asyncio
import fcntl
import os
import signal
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from schemas import BatchLifecycleState
from trinity_bus import awake
from trinity_bus.bus import Bus
from trinity_bus.config import KafkaSettings, Settings, TrainerSettings
from trinity_bus.config.template import rendered
from trinity_bus.errors import BusError, ConfigError
from trinity_bus.runtime.plain_files import append_plain, open_plain
from trinity_bus.runtime.supervisor import Supervisor
from trinity_bus.sizing.hardware import Hardware
from trinity_bus.view import MeshState, follow
from workers.demo.display import Display
from workers.demo.settings import given_settings, with_http_key
from workers.local import (
    Broker,
    PlannedService,
    broker,
    planned,
    service_environment,
    spec_of,
    supervised,
    while_watched,
)
from workers.preconditions import memory
from workers.runs import command

RUNNING: Final = "up.lock"
_FLOCK: Final = "hhqqi0q"  # ``struct flock`` of Linux: type, whence, start, length, process
MESH_FILE: Final = "mesh.toml"
_POLL_S: Final = 0.1
_AGAIN_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    run_dir: Path
    explorers: int = 1
    gateway: bool = False
    console: bool = False
    program: Callable[..., Sequence[str]] = command  # Makes the command line of ``trinity-bus`` with some arguments


def is_done(view: MeshState, *, trainer: bool, taskset: bool) -> bool:
    """Whether there is nothing left to be done."""
    if trainer or not taskset:
        return trainer
    batches = view.batches.values()
    if any(batch.completed < batch.accepted for batch in batches if not batch.ended):
        return False
    steps = [batch for step in view.trained if (batch := view.batches.get(step.batch_id or "")) is not None]
    trained = max((batch.sequence for batch in steps), default=0)
    return not any(
        batch.state is BatchLifecycleState.FINALIZED
        and batch.batch_type == "train"
        and batch.sequence > trained
        and batch.reason is None
        for batch in batches
    )


def plan(settings: Settings, options: UpOptions) -> list[PlannedService]:
    """Return what is started: what the settings name, and what the user asks for beside."""
    services = ["trainer", "explorer", *["taskset"] * (settings.taskset.path is not None)]
    made = [one for one in planned(services, settings, Hardware()) if not one.name.startswith("explorer")]
    for number in range(options.explorers):
        own = (f"explorer.name=explorer-{number}", "explorer.http_port=0")
        arguments = [*(word for setting in own for word in ("--set", setting)), "run", "explorer"]
        made.append(PlannedService(f"explorer-{number}", arguments))
    more = (("gateway", options.gateway), ("console", options.console))
    return [*made, *(PlannedService(name, ["run", name]) for name, wanted in more if wanted)]


def write_mesh_file(options: UpOptions, settings: Settings, kafka: KafkaSettings) -> Path:
    own: dict[str, object] = {
        "mesh.namespace": kafka.namespace,
        "kafka.bootstrap_servers": kafka.bootstrap_servers,
        "telemetry.run_dir": options.run_dir,
        "trainer.checkpoint_dir": settings.trainer.checkpoint_dir or options.run_dir / "checkpoints",
    }
    path = options.run_dir / MESH_FILE
    path.write_text(rendered("The settings of this run, as `up` has written them.", given_settings() | own), "utf-8")
    return path


async def run_up(settings: Settings, options: UpOptions, display: Display) -> None:
    """Run a mesh until its training is done; the run's folder is there, and absolute."""
    settings = with_http_key(settings)
    _fit(settings, options, display)
    display.stage("start the services")
    with claimed(options.run_dir):
        async with broker(settings, options.run_dir, display.note) as found:
            mesh_file = write_mesh_file(options, settings, found.kafka)
            display.note(f"Kafka: {found.kafka.bootstrap_servers}, topics {found.kafka.namespace}.*")
            display.note(f"Its settings, for other commands: --config {mesh_file}")
            env = service_environment(settings)
            specs = [spec_of(one, mesh_file, env, options.program) for one in plan(settings, options)]
            async with supervised(options.run_dir, display.note, specs) as supervisor:
                following = _follow_until_done(found, supervisor, options, settings.trainer, display)
                await while_watched(following, found.check, supervisor.check)


def _fit(settings: Settings, options: UpOptions, display: Display) -> None:
    # Raises ConfigError where this machine has less memory than the services need; says so where it is not free
    needed = memory([one.name.partition("-")[0] for one in plan(settings, options)], settings)
    if needed is not None and needed.impossible:
        raise ConfigError(needed.impossible)
    if needed is not None and needed.tight:
        display.note(f"memory is short: {needed.tight}")


async def _follow_until_done(
    found: Broker, supervisor: Supervisor, options: UpOptions, trainer: TrainerSettings, display: Display
) -> None:
    # Look at the log, however the services fare
    serves = False
    while True:
        try:
            async with Bus(found.kafka, client_id="up", patient=True) as bus:
                await bus.ensure_topics()
                async with follow(bus, whole=True, gather_s=_POLL_S) as follower:
                    view = follower.state
                    while not _is_done(view, supervisor, trainer):
                        await follower.changed(_POLL_S)
                        if not serves:
                            display.starting(supervisor.activities())
                            serves = sum(1 for one in view.alive() if one.model_version >= 0) >= options.explorers
                            if serves:
                                display.stage("train")
                        display.update(view)
                    return
        except BusError as error:
            display.note(f"the log cannot be looked at now, and is again in a moment: {error}")
        await asyncio.sleep(_AGAIN_S)


def _is_done(view: MeshState, supervisor: Supervisor, settings: TrainerSettings) -> bool:
    names = {one.name for one in supervisor.activities()}
    trainer, taskset = (name in names and supervisor.is_done(name) for name in ("trainer", "taskset"))
    return is_done(view, trainer=trainer or says_done(view, settings), taskset=taskset)


def says_done(view: MeshState, settings: TrainerSettings) -> bool:
    """Whether the trainer has trained all steps. One of an earlier run may have said so, too."""
    told = view.trainer if view.trainer_is_alive else None
    return told is not None and told.state == "done" and settings.is_done(told.step)


# --------------------------------------------------------------------------------------------------- who runs it


@contextmanager
def claimed(run_dir: Path) -> Iterator[None]:
    """Within the block, this process runs the folder: it holds a lock there, which ends with it however it ends.

    Raises ConfigError: another process runs the folder.
    """
    path = run_dir / RUNNING
    with _locked(path):
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _locked(path: Path) -> BinaryIO:
    while True:
        file = append_plain(path)
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.close()
            raise ConfigError(
                f"{path.parent} is run by process {running(path.parent)}: trinity-bus down --run-dir {path.parent}, "
                "or give another one"
            ) from error
        # The run before may have removed its file between both.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.lstat()):
                return file
        file.close()


def running(run_dir: Path) -> int | None:
    """Return the process that runs a folder, or None. Not for itself: to close the file would end its lock."""
    try:
        with open_plain(run_dir / RUNNING) as file:
            asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, asked))
    except OSError:
        return None
    return None if kind == fcntl.F_UNLCK else pid


def stop(run_dir: Path, limit_s: float) -> int | None:
    """Ask a folder's process to end, and wait; return its id, or None. Raises ConfigError where it has not in time."""
    pid = running(run_dir)
    if pid is None:
        return None
    os.kill(pid, signal.SIGTERM)

    def ended(left_s: float) -> bool:
        time.sleep(min(left_s, _POLL_S))
        return running(run_dir) != pid

    if not awake.wait_in_thread(ended, limit_s):
        raise ConfigError(f"process {pid}, which runs {run_dir}, has not ended in {limit_s:g} s")
    return pid
