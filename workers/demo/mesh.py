"""The demo's services and their ends: coordinator, explorers and trainer under one supervisor."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from trinity_bus.broker import EmbeddedBroker
from trinity_bus.config import KafkaSettings, Settings
from trinity_bus.errors import BusError
from trinity_bus.runtime.supervisor import ServiceDiedError, ServiceSpec, Supervisor
from workers.demo.settings import (
    DemoOptions,
    available_cores,
    command,
    demo_namespace,
    explorer_environment,
    service_environment,
    trainer_environment,
)

_GRACE_S = 10.0


@dataclass(frozen=True, slots=True)
class Broker:
    """Where the log is, and whose it is."""

    kafka: KafkaSettings
    embedded: EmbeddedBroker | None = None
    """Ours, where no cluster is configured."""

    def check(self) -> None:
        """Look whether our own broker lives.

        Raises:
            ServiceDiedError: It has ended.
        """
        if self.embedded is not None and (code := self.embedded.poll()) is not None:
            raise ServiceDiedError("kafka", f"ended with status {code}", self.embedded.folder.server_log)


@asynccontextmanager
async def broker(settings: Settings, options: DemoOptions) -> AsyncIterator[Broker]:
    """The configured cluster, in a namespace of this run; else an embedded broker, its data in the run's folder."""
    if settings.kafka.bootstrap_servers is not None:
        yield Broker(demo_namespace(settings.kafka, options.run_dir.name))
        return
    own = settings.broker.model_copy(update={"port": 0, "data_dir": options.run_dir / "broker"})
    async with EmbeddedBroker(own) as embedded:
        found = Broker(embedded.kafka_settings(settings.kafka), embedded)
        try:
            yield found
        except BusError:
            # A client that cannot connect may be the first to notice; what has ended says more.
            found.check()
            raise


def specs(options: DemoOptions, kafka: KafkaSettings) -> list[ServiceSpec]:
    """What to run. Explorers and trainer are the last to start and the first to stop."""
    shared = service_environment(options, kafka)
    cores = available_cores()
    found = [
        ServiceSpec(name="coordinator", command=command("run", "coordinator"), env=shared, grace_s=_GRACE_S),
        ServiceSpec(
            name="trainer",
            command=command("run", "trainer"),
            env=shared | trainer_environment(options),
            grace_s=_GRACE_S,
            stage=1,
        ),
    ]
    for index, name in enumerate(options.explorer_names):
        found.append(
            ServiceSpec(
                name=name,
                command=command("run", "explorer"),
                env=shared | explorer_environment(options, index, cores),
                grace_s=_GRACE_S,
                stage=1,
            )
        )
    return found


@asynccontextmanager
async def services(options: DemoOptions, kafka: KafkaSettings) -> AsyncIterator[Supervisor]:
    """All services, launched; stopped at the end, however it comes."""
    supervisor = Supervisor(options.run_dir)
    try:
        for spec in specs(options, kafka):
            supervisor.launch(spec)
        yield supervisor
    finally:
        # In a thread, so that a second Ctrl-C is heard meanwhile; what it leaves dies with this process.
        await asyncio.to_thread(supervisor.stop)
