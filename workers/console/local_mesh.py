"""A mesh of processes on this machine, started from the console, and ended with it.

::

    IDLE --start--> STARTING --all launched--> RUNNING --one is given up--> ENDED (why, with the end of its log)
                       |                          |
                       '--stop, or the console ends: STOPPING, in reverse order--> IDLE

A service that ends is started again, unless for a reason that stays; then the others are stopped too. One mesh at a
time.
Whatever ends the console, its services end as well (:mod:`trinity_bus.runtime.process`).
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trinity_bus.errors import TrinityError
from trinity_bus.runtime.http import in_thread
from trinity_bus.runtime.process import ProcessError
from trinity_bus.runtime.supervisor import Activity, Supervisor
from workers.local import PlannedService, spec_of
from workers.runs import command

log = logging.getLogger("workers.console")

type LocalState = Literal["idle", "starting", "running", "stopping", "ended"]


class MeshBusyError(TrinityError):
    """Something runs already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRun:
    namespace: str
    folder: Path  # Of logs; ``mesh.toml`` lies in it
    plan: Sequence[PlannedService]
    env: Mapping[str, str]
    console: str = ""  # Address of its own console; empty: it has none


class LocalMesh:
    """At most one mesh. ``program`` makes the command line of ``trinity-bus`` with some arguments."""

    def __init__(self, program: Callable[..., Sequence[str]] = command) -> None:
        self._program = program
        self.state: LocalState = "idle"
        self.run: LocalRun | None = None  # The last one
        self.why = ""  # Why it ended
        self._supervisor: Supervisor | None = None
        self._watching: asyncio.Task[None] | None = None

    def activities(self) -> Sequence[Activity]:
        """Return what its services are at, by the ends of their logs, which are read."""
        supervisor = self._supervisor
        return [] if supervisor is None else supervisor.activities()

    @property
    def is_busy(self) -> bool:
        """Whether one runs, or is being started or stopped."""
        return self.state not in {"idle", "ended"}

    def start(self, run: LocalRun) -> None:
        """Begin to start a mesh. Raises MeshBusyError: one runs already."""
        if self.is_busy:
            raise MeshBusyError("a mesh that was started from here runs already: stop it first")
        self.run, self.why, self.state = run, "", "starting"
        self._watching = asyncio.create_task(self._live(run), name="local-mesh")

    async def stop(self) -> None:
        """Stop it, and wait until all of it has ended."""
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.cancel()
            await asyncio.wait([watching])

    async def _live(self, run: LocalRun) -> None:
        supervisor = self._supervisor = Supervisor(run.folder)
        try:
            await in_thread(self._launch, supervisor, run)
            self.state = "running"
            await supervisor.watch()
        except (ProcessError, OSError) as error:
            log.warning("the mesh that was started from here has ended: %s", error)
            self.why = str(error)
        finally:
            self.state = "stopping"
            await in_thread(supervisor.stop)
            self._supervisor = None
            self.state = "ended" if self.why else "idle"

    def _launch(self, supervisor: Supervisor, run: LocalRun) -> None:
        for one in run.plan:
            supervisor.launch(spec_of(one, run.folder / "mesh.toml", run.env, self._program))
