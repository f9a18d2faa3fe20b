"""The demo's services and their ends: coordinator, explorers and trainer under one supervisor."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from trinity_bus import awake
from trinity_bus.broker import EmbeddedBroker
from trinity_bus.broker.errors import BrokerError
from trinity_bus.broker.restarts import Restarts
from trinity_bus.config import KafkaSettings, Settings
from trinity_bus.errors import BusError
from trinity_bus.runtime.preload import Preload
from trinity_bus.runtime.supervisor import ServiceDiedError, ServiceSpec, Supervisor
from workers.demo.options import DemoOptions
from workers.demo.preloads import Preloads
from workers.demo.settings import (
    available_cores,
    demo_namespace,
    explorer_options,
)
from workers.service_environment import service_environment

_GRACE_S = 10.0
_POLL_S = 0.1


class Broker:
    """Where the log is, and whose it is.

    Args:
        kafka: How to connect.
        embedded: Ours, where no cluster is configured. Started.
        note: Tells the user what happened.
    """

    def __init__(self, kafka: KafkaSettings, embedded: EmbeddedBroker | None, note: Callable[[str], None]) -> None:
        self.kafka = kafka
        self._embedded = embedded
        self._note = note
        self._restarts = Restarts()
        self._watch = asyncio.create_task(self._keep_alive())

    def check(self) -> None:
        """Look whether our own broker is to be given up.

        Raises:
            ServiceDiedError: It has ended too often, or does not start again.
        """
        if self._watch.done():
            self._watch.result()

    async def close(self) -> None:
        """Watch it no more."""
        self._watch.cancel()
        await asyncio.wait([self._watch])

    async def _keep_alive(self) -> None:
        while self._embedded is not None:
            if (code := self._embedded.poll()) is not None:
                log = self._embedded.folder.server_log
                if not self._restarts.allow(awake.now()):
                    raise ServiceDiedError("kafka", f"ended with status {code} again", log)
                self._note(f"Kafka ended with status {code} and is started again; the services wait for it")
                await self._start(self._embedded)
            await asyncio.sleep(_POLL_S)

    async def _start(self, embedded: EmbeddedBroker) -> None:
        # A thread cannot be cancelled, and what it starts must be known before anybody stops it.
        starting = asyncio.ensure_future(asyncio.to_thread(embedded.start))
        await asyncio.wait([starting])
        try:
            starting.result()
        except BrokerError as error:
            raise ServiceDiedError("kafka", f"cannot be started again: {error}", embedded.folder.server_log) from error
        if embedded.bootstrap_servers != self.kafka.bootstrap_servers:
            raise ServiceDiedError("kafka", "has lost its port to another process", embedded.folder.server_log)


@asynccontextmanager
async def broker(settings: Settings, run_dir: Path, note: Callable[[str], None]) -> AsyncIterator[Broker]:
    """Provide the configured cluster, in a namespace of this run.

    Else an embedded broker, its data in the run's folder.
    """
    async with AsyncExitStack() as stack:
        embedded = None
        kafka = demo_namespace(settings.kafka, run_dir.name)
        if settings.kafka.bootstrap_servers is None:
            own = settings.broker.model_copy(update={"port": 0, "data_dir": run_dir / "broker"})
            embedded = await stack.enter_async_context(EmbeddedBroker(own))
            kafka = embedded.kafka_settings(kafka)
        found = Broker(kafka, embedded, note)
        stack.push_async_callback(found.close)
        try:
            yield found
        except BusError:
            # A client that cannot connect may be the first to notice; what has ended says more.
            found.check()
            raise


def specs(options: DemoOptions, env: Mapping[str, str], preloads: Preloads) -> list[ServiceSpec]:
    """Return what to run. Explorers and trainer are the last to start and the first to stop.

    Args:
        options: The user's.
        env: Of all services.
        preloads: What they are forked from.
    """

    def spec(name: str, forked_from: Preload, *arguments: str, stage: int) -> ServiceSpec:
        return ServiceSpec(
            name=name,
            command=["--config", str(options.mesh_file), *arguments],
            forked_from=forked_from,
            env=env,
            grace_s=_GRACE_S,
            stage=stage,
        )

    def explorer(index: int, name: str) -> ServiceSpec:
        arguments = [*explorer_options(options, index, available_cores()), "run", "explorer"]
        if preloads.runners is None:
            return spec(name, preloads.explorers, *arguments, stage=1)
        made = spec(name, preloads.explorers, *arguments, "--fork-server", stage=1)
        return replace(made, channel=partial(_fork_server, *preloads.runners, name, options.log(name)))

    # Whoever looks on waits for the mesh, and not the other way round.
    console = ["--set", f"console.port={options.console_port}", "run", "console"]
    return [
        spec("coordinator", preloads.shared, "run", "coordinator", stage=0),
        spec("trainer", preloads.trainer, "run", "trainer", stage=1),
        *(explorer(index, name) for index, name in enumerate(options.explorer_names)),
        replace(spec("console", preloads.console, *console, stage=1), is_needed=False),
    ]


def _fork_server(runners: Preload, env: Mapping[str, str], name: str, log: Path) -> socket.socket:
    """Have a fork server forked for an explorer; returns the explorer's end of the channel to it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    runners.start([], name=f"runners of {name}", env=env, output=log, passed=theirs)
    return ours


@asynccontextmanager
async def services(settings: Settings, options: DemoOptions, preloads: Preloads) -> AsyncIterator[Supervisor]:
    """All services, launched; stopped at the end, however it comes."""
    supervisor = Supervisor(options.run_dir)
    try:
        for spec in specs(options, service_environment(settings), preloads):
            supervisor.launch(spec)
        yield supervisor
    finally:
        # In a thread, so that a second Ctrl-C is heard meanwhile; what it leaves dies with this process.
        await asyncio.to_thread(supervisor.stop)
