"""The demo's services and their ends: coordinator, explorers and trainer under one supervisor."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from trinity_bus.broker import EmbeddedBroker
from trinity_bus.broker.errors import BrokerError
from trinity_bus.broker.restarts import Restarts
from trinity_bus.config import KafkaSettings, Settings, env_name
from trinity_bus.errors import BusError
from trinity_bus.runners.confinement import environment
from trinity_bus.runtime.preload import Preload
from trinity_bus.runtime.supervisor import Activity, ServiceDiedError, ServiceSpec, Supervisor, activity_of
from workers.demo.settings import (
    DemoOptions,
    available_cores,
    demo_namespace,
    explorer_options,
)
from workers.runs import command, service_environment

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


@dataclass(frozen=True, slots=True)
class Preloads:
    """What services are forked from.

    One process has imported what all of them need, and two more have gone on from it. One that is given as little as
    runners are has imported what those need, and fork servers of explorers are forked from it.
    """

    all: Preload
    explorers: Preload
    trainer: Preload
    runners: tuple[Preload, Mapping[str, str]] | None
    """And their environment. Unset: explorers start fork servers of their own, since the user has named a Python for
    runners, or modules."""

    def check(self, options: DemoOptions) -> None:
        """Look whether services can be forked, or could be.

        Raises:
            ServiceDiedError: What they are forked from has ended.
        """
        for name, preload in self._named():
            if (code := preload.process.poll()) is not None:
                raise ServiceDiedError(name, f"ended with status {code}", _log(options, name))

    def activities(self, options: DemoOptions) -> list[Activity]:
        """Return what those do that still import."""
        return [activity_of(name, _log(options, name)) for name, preload in self._named() if not preload.loaded]

    def _named(self) -> Iterator[tuple[str, Preload]]:
        yield from {"preload": self.all, "vllm": self.explorers, "megatron": self.trainer}.items()
        if self.runners is not None:
            yield "runners", self.runners[0]


@contextmanager
def preload(settings: Settings, options: DemoOptions) -> Iterator[Preloads]:
    """Provide the processes that import for the services, each of which is then forked from one."""
    # That it is there says that nothing is to be looked up on a model hub.
    options.model_dir.mkdir(parents=True, exist_ok=True)
    log = _log(options, "preload")
    log.parent.mkdir(exist_ok=True)
    env = {
        **service_environment(settings),
        env_name("mesh.model_path"): str(options.model_dir.resolve()),
        # Asked for GPUs, as by Megatron's import, torch would begin to use CUDA, and then no fork of it can.
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    }
    here = "workers.demo.mesh"
    with (
        Preload.begin(
            [f"{here}:import_shared"], name="preload", main="workers.cli.app:main", env=env, output=log
        ) as found,
        _runners(settings, options, env) as runners,
    ):
        vllm = ["trinity_bus.inference.launch:preload", f"{here}:import_explorer"]
        explorers = found.branch(vllm, name="vllm", env=env, output=_log(options, "vllm"))
        trainer = found.branch([f"{here}:import_trainer"], name="megatron", env=env, output=_log(options, "megatron"))
        with explorers, trainer:
            yield Preloads(found, explorers, trainer, runners)


@contextmanager
def _runners(
    settings: Settings, options: DemoOptions, env: Mapping[str, str]
) -> Iterator[tuple[Preload, Mapping[str, str]] | None]:
    explorer = settings.explorer
    if explorer.runner_python is not None or explorer.workflow_modules is not None:
        yield None
        return
    module, own = "trinity_bus.runners.fork_server_main", environment(env, explorer.runner_environment)
    log = _log(options, "runners")
    with Preload.begin([f"{module}:preload"], name="runners", main=f"{module}:main", env=own, output=log) as found:
        yield found, own


def _log(options: DemoOptions, name: str) -> Path:
    return options.run_dir / "logs" / f"{name}.log"


def import_shared() -> None:
    """Import what several services need: torch, and the coordinator, which is what all of them need and little more."""
    import torch  # noqa: F401

    import workers.coordinator.service  # noqa: F401


def import_explorer() -> None:
    """Import the explorer's own code."""
    import workers.explorer.service  # noqa: F401


def import_trainer() -> None:
    """Import the trainer's own code, and Megatron."""
    import trinity_bus.training.megatron_engine  # noqa: F401
    import workers.trainer.service  # noqa: F401


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
        return replace(made, channel=partial(_fork_server, *preloads.runners, name, _log(options, name)))

    return [
        spec("coordinator", preloads.all, "run", "coordinator", stage=0),
        spec("trainer", preloads.trainer, "run", "trainer", stage=1),
        *(explorer(index, name) for index, name in enumerate(options.explorer_names)),
        _console(options, env),
    ]


def _console(options: DemoOptions, env: Mapping[str, str]) -> ServiceSpec:
    """Return what whoever looks on is shown by: it waits for the mesh, and not the other way round."""
    own = ["--config", str(options.mesh_file), "--set", f"console.port={options.console_port}", "run", "console"]
    return ServiceSpec(
        name="console",
        command=["nice", "-n", "15", *command(*own)],
        env=env,
        grace_s=_GRACE_S,
        stage=1,
        is_needed=False,
    )


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
