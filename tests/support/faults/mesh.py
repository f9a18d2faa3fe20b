"""A whole mesh of real processes, to be killed: broker, coordinators, explorers, a trainer; each is started anew.

The coordinators, the explorers' services and the broker are the real ones; the engine and the trainer are FAKE, see
``fakes.explorer`` and ``benchmarks._scheduling.consumer``.

::

    service: RUNNING --kill(): SIGKILL--> ENDED --tend()--> RUNNING, as a new incarnation
                |--ends by itself (its broker is gone, another took over)--> ENDED --tend()--> RUNNING
"""

import asyncio
import contextlib
import os
import random
import signal
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psutil

from tests.support.mesh.broker_choice import is_three
from tests.support.mesh.broker_cluster import BrokerCluster
from tests.support.mesh.forks import forked
from tests.support.mesh.mesh import environment, own_broker
from trinity_bus.broker import EmbeddedBroker
from trinity_bus.config import KafkaSettings
from trinity_bus.runtime.process import Process

POLL_S = 0.02
BELOW = ("guard", "fork_server", "runner")
"""What is below an explorer's service: each the parent of the next, see :mod:`trinity_bus.runners`."""
FORK_SERVER = "trinity_bus.runners.fork_server_main"
"""Module of the process that runners are forked from. Theirs is the same command line, and its guard's ends with it."""
OUTAGE_S = 240.0
"""How long everybody does without the broker: on a busy machine it may take a minute and more to start."""
PAUSE_S = 0.3
"""Between the end of a service by itself and its next start: while the broker is away, it would end at once again."""


COORDINATOR: Final = {"max_staleness": 1, "tick_s": 0.05, "explorer_timeout_s": 10, "group_size": 2}
EXPLORER: Final = {"slots": 4, "heartbeat_s": 0.3}


class Service:
    """One process, and its later incarnations: a module, and its arguments."""

    def __init__(self, name: str, command: Sequence[str], env: Mapping[str, str], folder: Path) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self.incarnations = 0
        self.kills = 0
        self._command = command
        self._env = env
        self._child: Process | None = None
        self._start_at = 0.0
        self._dying = False

    @property
    def pid(self) -> int | None:
        return None if self._child is None or self._child.poll() is not None else self._child.pid

    def kill(self) -> bool:
        pid = self.pid
        if pid is None or self._dying:
            return False
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            # It has ended since the look.
            return False
        self.kills += 1
        self._dying = True
        return True

    def tend(self) -> None:
        if self._child is not None and (code := self._child.poll()) is not None:
            self._child = None
            self._start_at = time.monotonic() + (0.0 if code == -signal.SIGKILL else PAUSE_S)
        if self._child is None and time.monotonic() >= self._start_at:
            self.incarnations += 1
            self._dying = False
            self._child = forked(*self._command, name=self.name, env=self._env, output=self.log)

    def stop(self) -> None:
        if self._child is not None:
            self._child.kill()


class FaultMesh:
    """All processes of one run, tended until the end of the block. An async context manager.

    An answer of the fake engine takes ``engine_delay_s`` at most. A broker that is given is started, killed and stopped
    by somebody else.
    """

    def __init__(
        self,
        folder: Path,
        *,
        coordinators: int = 1,
        explorers: int = 2,
        coordinator: Mapping[str, object] = COORDINATOR,
        explorer: Mapping[str, object] = EXPLORER,
        engine_delay_s: float = 0.1,
        broker: EmbeddedBroker | BrokerCluster | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.broker_kills = 0
        self._kills_below: Counter[str] = Counter()
        self._broker_serves = True
        """Not while it starts: whoever starts it would take its end for a failure."""
        self._owns_broker = broker is None
        self.broker = broker or _broker(folder / "broker")
        self.services: dict[str, Service] = {}
        self._namespace = f"faults-{uuid.uuid4().hex[:8]}"
        self._environment_of_all = dict(environment or {})
        self._sections = {"coordinator": coordinator, "explorer": explorer}
        self._engine_delay_s = engine_delay_s
        self._names = (
            *(f"coordinator-{number}" for number in range(coordinators)),
            *(f"explorer-{number}" for number in range(explorers)),
            "trainer",
        )
        self._tending: asyncio.Task[None] | None = None

    @property
    def kafka(self) -> KafkaSettings:
        return self.broker.kafka_settings(KafkaSettings(namespace=self._namespace, outage_s=OUTAGE_S))

    @property
    def kills(self) -> Counter[str]:
        counted = Counter({"broker": self.broker_kills}) + self._kills_below
        for service in self.services.values():
            counted[service.name.partition("-")[0]] += service.kills
        return counted

    def of_role(self, role: str) -> list[Service]:
        return [service for service in self.services.values() if service.name.partition("-")[0] == role]

    def kill_broker(self) -> bool:
        """SIGKILL to Kafka, to one of several in turn; whether it ran."""
        if self.broker.pid is None or not self._broker_serves or self.broker.poll() is not None:
            return False
        try:
            os.kill(self.broker.pid, signal.SIGKILL)
        except ProcessLookupError:
            # It has ended since the look.
            return False
        self._broker_serves = False
        self.broker_kills += 1
        return True

    def kill_below(self, explorer: Service, role: str, rng: random.Random) -> bool:
        """SIGKILL to one of the processes of this role (of ``BELOW``) that run an explorer's workflows."""
        if explorer.pid is None:
            return False
        with contextlib.suppress(psutil.NoSuchProcess):
            found = [psutil.Process(explorer.pid)]
            for _ in range(BELOW.index(role) + 1):
                found = [child for parent in found for child in parent.children() if FORK_SERVER in child.cmdline()]
            if found:
                rng.choice(found).send_signal(signal.SIGKILL)
                self._kills_below[role] += 1
                return True
        return False

    def check(self) -> None:
        """Raises what ended the tending."""
        if self._tending is not None and self._tending.done():
            self._tending.result()

    async def __aenter__(self) -> Self:
        if self._owns_broker:
            await self._start_broker()
        for name in self._names:
            self.services[name] = Service(name, self._command(name), self._environment(name), self.folder)
        self._tending = asyncio.create_task(self._tend())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._tending is not None:
            self._tending.cancel()
            await asyncio.wait([self._tending])
        await asyncio.to_thread(self._stop)

    async def _tend(self) -> None:
        while True:
            if self._owns_broker and self.broker.poll() is not None:
                self._broker_serves = False
                await self._start_broker()
                self._broker_serves = True
            for service in self.services.values():
                # Starting a process takes a while of this loop's time, so others get theirs in between.
                service.tend()
                await asyncio.sleep(0)
            await asyncio.sleep(POLL_S)

    async def _start_broker(self) -> None:
        starting = asyncio.ensure_future(asyncio.to_thread(self.broker.start))
        try:
            await asyncio.shield(starting)
        finally:
            # A thread is not cancelled: it would start a broker that nobody stops.
            await asyncio.wait([starting])

    def _stop(self) -> None:
        for service in self.services.values():
            service.stop()
        if self._owns_broker:
            self.broker.stop()

    def _command(self, name: str) -> list[str]:
        role = name.partition("-")[0]
        if role == "coordinator":
            return ["workers.cli.app", "run", "coordinator"]
        if role == "explorer":
            return ["tests.support.fakes.explorer", "words"]
        return ["benchmarks._scheduling.consumer", str(self.folder), "0", "1"]

    def _environment(self, name: str) -> dict[str, str]:
        role = name.partition("-")[0]
        values = {f"{role}__{key}": value for key, value in {**self._sections.get(role, {}), "name": name}.items()}
        own = environment(self.kafka, kafka__outage_s=OUTAGE_S, **values)
        return {**own, "FAKE_ENGINE_DELAY_S": str(self._engine_delay_s), **self._environment_of_all}


def _broker(folder: Path) -> EmbeddedBroker | BrokerCluster:
    if is_three():
        return BrokerCluster(folder)
    return EmbeddedBroker(own_broker(folder, heap_mib=384, start_timeout_s=OUTAGE_S))
