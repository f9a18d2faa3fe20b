"""The parts of a mesh that a command runs on this machine: its broker, and what each service is started with.

::

    Kafka: SERVES --ends--> see ``runtime.supervisor``: again, at the same address; or given up: ServiceDiedError

The services are a :class:`trinity_bus.runtime.supervisor.Supervisor`'s.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from trinity_bus import awake
from trinity_bus.broker import EmbeddedBroker
from trinity_bus.config import CONFIG_VARIABLE, KafkaSettings, Settings, env_name, setting_fields
from trinity_bus.config.sections import Sections, is_secret
from trinity_bus.config.values import FILE_SUFFIX
from trinity_bus.errors import BrokerError, BusError
from trinity_bus.runtime.preload import Preload
from trinity_bus.runtime.supervisor import Fate, Restarts, ServiceDiedError, ServiceSpec, Supervisor
from trinity_bus.sizing.hardware import Hardware
from workers.runs import command


def service_environment(settings: Settings) -> dict[str, str]:
    """Return the environment of the services: this one, without settings, which are in the file, but with secrets."""
    fields = setting_fields()
    in_file = {env_name(path) for path, field in fields.items() if not is_secret(field)} | {CONFIG_VARIABLE}
    kept = {name: value for name, value in os.environ.items() if name.upper() not in in_file}
    names = {name.upper() for name in kept}
    for path in [path for path, field in fields.items() if is_secret(field)]:
        section, _, name = path.partition(".")
        secret: SecretStr | None = getattr(getattr(settings, section), name)
        if secret is not None and not {env_name(path), env_name(path) + FILE_SUFFIX} & names:
            # From the user's own file, which services do not read.
            kept[env_name(path)] = secret.get_secret_value()
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


_GRACE_S = 20.0
_POLL_S = 0.1


class Broker:
    """Where the log is, and whose it is; ``embedded`` is ours, started, where no cluster is configured."""

    def __init__(self, kafka: KafkaSettings, embedded: EmbeddedBroker | None, note: Callable[[str], None]) -> None:
        self.kafka = kafka
        self._embedded = embedded
        self._note = note
        self._restarts = Restarts()
        self._watch = asyncio.create_task(self._keep_alive())

    def check(self) -> None:
        """Raise ServiceDiedError where our own broker has ended too often, or does not start again."""
        if self._watch.done():
            self._watch.result()

    async def close(self) -> None:
        self._watch.cancel()
        await asyncio.wait([self._watch])

    async def _keep_alive(self) -> None:
        began = awake.now()
        while self._embedded is not None:
            if (code := self._embedded.poll()) is not None:
                verdict = self._restarts.ended(code, awake.now() - began)
                if verdict.fate is not Fate.AGAIN:
                    raise ServiceDiedError("kafka", verdict.why, self._embedded.folder.server_log)
                self._note(f"Kafka {verdict.why}; it is started again, and the services wait for it")
                await asyncio.sleep(verdict.pause_s)
                began = awake.now()
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
    """Provide the configured cluster; else an embedded broker, its data in the run's folder."""
    async with AsyncExitStack() as stack:
        embedded = None
        kafka = settings.kafka
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


@asynccontextmanager
async def supervised(
    run_dir: Path, note: Callable[[str], None], specs: Iterable[ServiceSpec]
) -> AsyncIterator[Supervisor]:
    """Provide services, launched; they are stopped at the end, however it comes."""
    supervisor = Supervisor(run_dir, note)
    try:
        for spec in specs:
            supervisor.launch(spec)
        yield supervisor
    finally:
        # In a thread, so that a second Ctrl-C is heard meanwhile; what it leaves dies with this process.
        await asyncio.to_thread(supervisor.stop)


async def while_watched[R](work: Coroutine[Any, Any, R], *checks: Callable[[], None]) -> R:
    """Return what some work with a mesh comes to; raise what a look at its broker and services does, if sooner."""

    async def watch() -> None:
        while True:
            for check in checks:
                check()
            await asyncio.sleep(_POLL_S)

    working, watching = asyncio.create_task(work), asyncio.create_task(watch())
    try:
        await asyncio.wait([working, watching], return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            await watching
        return await working
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.wait([working, watching])


@dataclass(frozen=True, slots=True)
class PlannedService:
    name: str
    arguments: Sequence[str]  # Of ``trinity-bus``, behind the file of settings
    gpus: Sequence[int] = ()  # That it sees. None: it is not told.
    stage: int = 1  # Higher ones stop first
    work_ends: bool = False  # Whether it ends by itself, with status 0, when its work is done


def planned(services: Sequence[str], settings: Sections, hardware: Hardware) -> list[PlannedService]:
    """Return the processes of a mesh: the trainer has the first GPUs, and each explorer the next ones."""
    found = [PlannedService("coordinator", ["run", "coordinator"], stage=0)]
    if "trainer" in services:
        found.append(PlannedService("trainer", ["run", "trainer"], range(hardware.trainer_gpus), work_ends=True))
    if "explorer" in services:
        size = settings.explorer.tensor_parallel_size if hardware.explorer_gpus else 0
        for number in range(hardware.explorers(settings)):
            name, first = f"explorer-{number}", hardware.trainer_gpus + number * size
            arguments = ["--set", f"explorer.name={name}", "run", "explorer"]
            found.append(PlannedService(name, arguments, range(first, first + size)))
    if "taskset" in services:
        found.append(PlannedService("taskset", ["run", "taskset"], stage=2, work_ends=True))
    return found


def spec_of(
    one: PlannedService,
    mesh_file: Path,
    env: Mapping[str, str],
    program: Callable[..., Sequence[str]] = command,
    forked_from: Preload | None = None,
) -> ServiceSpec:
    """Return how a service of a plan is run: whatever ends for a reason that can pass is started again."""
    told = ["--config", str(mesh_file), *one.arguments]
    gpus = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, one.gpus))} if one.gpus else {}
    return ServiceSpec(
        name=one.name,
        command=program(*told),
        forked_from=forked_from,
        forked_with=told,
        env={**env, **gpus},
        again=True,
        work_ends=one.work_ends,
        grace_s=_GRACE_S,
        stage=one.stage,
    )
