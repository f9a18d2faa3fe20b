"""The demo's services: coordinator, explorers and trainer under one supervisor, forked where that is sooner."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from trinity_bus.config import Settings
from trinity_bus.console.configuration.files import PlannedService
from trinity_bus.runtime.preload import Preload
from trinity_bus.runtime.supervisor import ServiceSpec, Supervisor
from workers.demo.options import DemoOptions
from workers.demo.preloads import Preloads
from workers.demo.settings import available_cores, explorer_options
from workers.local import spec_of
from workers.service_environment import service_environment

_GRACE_S = 10.0
_POLL_S = 0.1


def specs(options: DemoOptions, env: Mapping[str, str], preloads: Preloads) -> list[ServiceSpec]:
    """Return what to run. Explorers and trainer are the last to start and the first to stop."""

    def spec(name: str, forked_from: Preload, *arguments: str, stage: int) -> ServiceSpec:
        one = PlannedService(name, arguments, stage=stage, work_ends=name == "trainer")
        return replace(spec_of(one, options.mesh_file, env, forked_from=forked_from), grace_s=_GRACE_S)

    def explorer(index: int, name: str) -> ServiceSpec:
        arguments = [*explorer_options(options, index, available_cores()), "run", "explorer"]
        if preloads.runners is None:
            return spec(name, preloads.explorers, *arguments, stage=1)
        made = spec(name, preloads.explorers, *arguments, stage=1)
        channel = partial(_fork_server, *preloads.runners, name, options.log(name))
        return replace(made, forked_with=[*made.forked_with, "--fork-server"], channel=channel)

    # Whoever looks on waits for the mesh, and not the other way round.
    console = ["--set", f"console.port={options.console_port}", "run", "console"]
    return [
        spec("coordinator", preloads.shared, "run", "coordinator", stage=0),
        spec("trainer", preloads.trainer, "run", "trainer", stage=1),
        *(explorer(index, name) for index, name in enumerate(options.explorer_names)),
        replace(spec("console", preloads.console, *console, stage=1), is_needed=False),
    ]


def _fork_server(runners: Preload, env: Mapping[str, str], name: str, log: Path) -> socket.socket:
    # Have a fork server forked for an explorer; returns the explorer's end of the channel to it
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    runners.start([], name=f"runners of {name}", env=env, output=log, passed=theirs)
    return ours


@asynccontextmanager
async def services(
    settings: Settings, options: DemoOptions, preloads: Preloads, note: Callable[[str], None]
) -> AsyncIterator[Supervisor]:
    """All services, launched; stopped at the end, however it comes."""
    supervisor = Supervisor(options.run_dir, note)
    try:
        for spec in specs(options, service_environment(settings), preloads):
            supervisor.launch(spec)
        yield supervisor
    finally:
        # In a thread, so that a second Ctrl-C is heard meanwhile; what it leaves dies with this process.
        await asyncio.to_thread(supervisor.stop)
