"""The demo's services and their ends: coordinator, explorers and trainer under one supervisor."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

from trinity_bus.broker import EmbeddedBroker
from trinity_bus.broker.errors import BrokerError
from trinity_bus.broker.restarts import Restarts
from trinity_bus.config import KafkaSettings, Settings, env_name
from trinity_bus.errors import BusError
from trinity_bus.runtime.preload import Preload
from workers.demo.settings import (
    DemoOptions,
    available_cores,
    command,
    demo_namespace,
    explorer_options,
    service_environment,
)
from workers.demo.supervisor import ServiceDiedError, ServiceSpec, Supervisor

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
                if not self._restarts.allow(time.monotonic()):
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


@contextmanager
def preload(settings: Settings, options: DemoOptions) -> Iterator[Preload]:
    """Provide the process that imports vLLM, once for all explorers."""
    # That it is there says that nothing is to be looked up on a model hub.
    options.model_dir.mkdir(parents=True, exist_ok=True)
    log = options.run_dir / "logs" / "preload.log"
    log.parent.mkdir(exist_ok=True)
    env = {**service_environment(settings), env_name("mesh.model_path"): str(options.model_dir.resolve())}
    functions = ["trinity_bus.inference.launch:preload", "workers.demo.mesh:import_explorer"]
    with Preload(functions, main="workers.cli.app:main", env=env, output=log) as found:
        yield found


def check_preload(preload: Preload, options: DemoOptions) -> None:
    """Look whether explorers can be forked, or could be.

    Raises:
        ServiceDiedError: What they are forked from has ended.
    """
    if (code := preload.process.poll()) is not None:
        raise ServiceDiedError("preload", f"ended with status {code}", options.run_dir / "logs" / "preload.log")


def import_explorer() -> None:
    """Import the explorer's own code, in the process that explorers are forked from."""
    import workers.explorer.service  # noqa: F401


def specs(options: DemoOptions, environment: Mapping[str, str], preload: Preload | None) -> list[ServiceSpec]:
    """Return what to run. Explorers and trainer are the last to start and the first to stop.

    Args:
        options: The user's.
        environment: Of all services.
        preload: What explorers are forked from. Unset: each is started anew.
    """

    def spec(name: str, service: str, *, stage: int, own: Sequence[str] = ()) -> ServiceSpec:
        arguments = ["--config", str(options.mesh_file), *own, "run", service]
        forked_from = preload if service == "explorer" else None
        return ServiceSpec(
            name=name,
            command=command(*arguments) if forked_from is None else arguments,
            forked_from=forked_from,
            env=environment,
            grace_s=_GRACE_S,
            stage=stage,
        )

    cores = available_cores()
    # Whoever looks on waits for the mesh, and not the other way round.
    port = f"console.port={options.console_port}"
    looks_on = spec("console", "console", stage=1, own=["--set", port])
    looks_on = replace(looks_on, command=["nice", "-n", "15", *looks_on.command], is_needed=False)
    explorers = [
        spec(name, "explorer", stage=1, own=explorer_options(options, index, cores))
        for index, name in enumerate(options.explorer_names)
    ]
    return [spec("coordinator", "coordinator", stage=0), spec("trainer", "trainer", stage=1), *explorers, looks_on]


@asynccontextmanager
async def services(settings: Settings, options: DemoOptions, preload: Preload) -> AsyncIterator[Supervisor]:
    """All services, launched; stopped at the end, however it comes."""
    supervisor = Supervisor(options.run_dir)
    try:
        for spec in specs(options, service_environment(settings), preload):
            supervisor.launch(spec)
        yield supervisor
    finally:
        # In a thread, so that a second Ctrl-C is heard meanwhile; what it leaves dies with this process.
        await asyncio.to_thread(supervisor.stop)
