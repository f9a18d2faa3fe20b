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
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from trinity_bus import awake
from trinity_bus.config import Settings
from trinity_bus.errors import TrinityError
from trinity_bus.runtime.heap import importing
from trinity_bus.runtime.ports import LOOPBACK
from workers.demo import mesh
from workers.demo.clock import Clock
from workers.demo.display import Display
from workers.demo.model import make_model
from workers.demo.options import DemoOptions
from workers.demo.preloads import Preloads
from workers.demo.settings import demo_namespace, hint, write_mesh_file
from workers.local import broker

if TYPE_CHECKING:
    from workers.demo.report import Summary


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
        async with mesh.services(settings, options, preloads, display.note) as supervisor:
            from workers.demo.lesson import connected

            checks = (found.check, lambda: preloads.check(options), supervisor.check)
            async with connected(settings, kafka, options, display, clock) as lesson:
                return await lesson.run(checks, lambda: [*preloads.activities(options), *supervisor.activities()])


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
