"""The demo, from random weights to a model that does as it is told.

::

    broker, model -> services start -> test (held out) -> train, step by step -> test (held out) -> report
                            |                                                                            |
                            '--- any of them ends, or time is up: ServiceDiedError, DemoTimeoutError ----'

The demo is a client like any other: it produces tasks to the log and watches ``batches``, ``events`` and
``model-versions`` (:mod:`workers.demo.lesson`). It keeps the log a little ahead of the trainer, and stops when the
model has learned. On the way out, by whatever way, all services and the broker are stopped.
"""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from trinity_bus import awake
from trinity_bus.config import Settings
from trinity_bus.errors import TrinityError
from trinity_bus.runtime.memory import importing
from trinity_bus.runtime.ports import LOOPBACK
from trinity_bus.runtime.preload import Preload
from trinity_bus.runtime.supervisor import ServiceSpec
from workers.demo.display import Clock, Display
from workers.demo.model import make_model
from workers.demo.preloads import Preloads
from workers.demo.settings import available_cores, demo_namespace, explorer_options, hint, write_mesh_file
from workers.demo.subjects import DemoOptions
from workers.local import PlannedService, broker, service_environment, spec_of, supervised, while_watched

if TYPE_CHECKING:
    from workers.demo.report import Summary


_GRACE_S = 10.0


class DemoTimeoutError(TrinityError):
    """The demo took longer than its limit."""


async def run_demo(settings: Settings, options: DemoOptions, display: Display, preloads: Preloads) -> "Summary":
    """Run the whole demo, while others import for its services."""
    clock = Clock(display)
    try:
        async with awake.timeout(options.limit_s) as limit:
            with preloads.followed(asyncio.get_running_loop()):
                return await _run(settings, options, display, preloads, clock)
    except TimeoutError as error:
        if not limit.expired():
            raise
        done = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in clock.stages.items()) or "nothing"
        raise DemoTimeoutError(
            f"not done after {options.limit_s:g} s (--limit); so far: {done}. Logs: {options.run_dir / 'logs'}"
        ) from error


async def _run(
    settings: Settings, options: DemoOptions, display: Display, preloads: Preloads, clock: Clock
) -> "Summary":
    own = settings.model_copy(update={"kafka": demo_namespace(settings.kafka, options.run_dir.name)})
    began = clock.begin("start Kafka")
    async with _prepared(options) as preparing, broker(own, options.run_dir, display.note) as found:
        await preparing
        kafka = found.kafka
        write_mesh_file(options, kafka)
        clock.stages["start Kafka"] = time.perf_counter() - began
        preloads.broker_serves()
        display.note(f"Kafka: {kafka.bootstrap_servers}, topics {kafka.namespace}.*")
        display.note(f"Look on in a browser: http://{LOOPBACK}:{options.console_port}/")
        display.note(f"Look on from another terminal: {hint(options)} status")
        services = specs(options, service_environment(settings), preloads)
        async with supervised(options.run_dir, display.note, services) as supervisor:
            from workers.demo.lesson import connected

            async with connected(settings, kafka, options, display, clock) as lesson:
                running = lesson.run(lambda: [*preloads.activities(options), *supervisor.activities()])
                return await while_watched(running, found.check, lambda: preloads.check(options), supervisor.check)


@contextlib.asynccontextmanager
async def _prepared(options: DemoOptions) -> AsyncIterator[asyncio.Task[None]]:
    # Provide a task that does beside the broker's start what can be done without it
    preparing = asyncio.create_task(asyncio.to_thread(_prepare, options), name="prepare")
    try:
        yield preparing
    finally:
        await asyncio.wait([preparing])


def _prepare(options: DemoOptions) -> None:
    if options.subject.language is not None:
        make_model(options.model_dir, options.seed, options.subject.language)
    with importing():
        import workers.demo.lesson  # noqa: F401


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
