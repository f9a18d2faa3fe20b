"""What the demo's services are forked from: processes that import, from its first moment on.

::

    preload (what all need) --+--> torch --+--> vllm -------> explorers
        |                     |            '--> megatron ---> trainer
        |                     +--> runners -----------------> fork servers of the explorers
        |                     '--> console -----------------> console
        '--> coordinator

The first one (``workers.cli.demo`` begins it) is given as little as runners are, and never sees more: what a branch
is given goes past it (:mod:`trinity_bus.runtime.preload`). vLLM takes longer than all others together, so it begins at
once, and the others do beside it, first runners, then Megatron, then the console: as many at a time as there are other
cores, Kafka, which comes first, among them. Imports that share a core with it would only make all of them late.

Failures: one that ends ends the demo, with the last lines of its log.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

from trinity_bus.config import Settings, env_name
from trinity_bus.runners.confinement import environment
from trinity_bus.runtime.preload import Preload
from trinity_bus.runtime.supervisor import Activity, ServiceDiedError, activity_of
from workers.demo.settings import available_cores
from workers.demo.subjects import DemoOptions
from workers.local import service_environment

_HERE: Final = "workers.demo.preloads"
_FORK_SERVER: Final = "trinity_bus.runners.fork_server_main"
_MEGATRON: Final = "trinity_bus.training.engines.megatron_engine"
_VLLM: Final = "trinity_bus.inference.launch:preload"
_CONSOLE_NICENESS: Final = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Preloads:
    shared: Preload
    torch: Preload
    explorers: Preload
    trainer: Preload
    console: Preload
    # And their environment. Unset: explorers start fork servers of their own, since the user has named a Python for
    # runners, or modules.
    runners: tuple[Preload, Mapping[str, str]] | None
    broker_is_up: threading.Event

    def broker_serves(self) -> None:
        self.broker_is_up.set()
        self.look()

    def look(self) -> None:
        for _, preload in self._named():
            preload.look()

    def check(self, options: DemoOptions) -> None:
        """Look whether services can be forked, or could be. Raises ServiceDiedError where a preload has ended."""
        for name, preload in self._named():
            # What was forked from one that has ended since is started anew by the supervisor.
            if not preload.loaded and (code := preload.process.poll()) is not None:
                raise ServiceDiedError(name, f"ended with status {code}", options.log(name))

    def activities(self, options: DemoOptions) -> list[Activity]:
        return [activity_of(name, options.log(name)) for name, preload in self._named() if not preload.loaded]

    @contextmanager
    def followed(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        """Within the block a loop looks at them whenever one has something to tell."""

        def heard(preload: Preload) -> None:
            self.look()
            if preload.loaded or preload.process.poll() is not None:
                # From then on whoever checks the services looks, too; and one that is gone would be heard for ever.
                loop.remove_reader(preload)

        followed = [preload for _, preload in self._named()]
        for preload in followed:
            loop.add_reader(preload, heard, preload)
        try:
            yield
        finally:
            for preload in followed:
                loop.remove_reader(preload)

    def _named(self) -> Iterator[tuple[str, Preload]]:
        yield "preload", self.shared
        yield "torch", self.torch
        yield "vllm", self.explorers
        yield "megatron", self.trainer
        if self.runners is not None:
            yield "runners", self.runners[0]
        yield "console", self.console


@contextmanager
def begun(settings: Settings, options: DemoOptions, shared: Preload) -> Iterator[Preloads]:
    """Provide them; they end with the block."""
    # That it is there says that nothing is to be looked up on a model hub.
    options.model_dir.mkdir(parents=True, exist_ok=True)
    env = {
        **service_environment(settings),
        env_name("mesh.model_path"): str(options.model_dir.resolve()),
        # Asked for GPUs, as by Megatron's import, torch would begin to use CUDA, and then no fork of it can.
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    }
    cores = max(1, len(available_cores()) - 1)
    broker_is_up = threading.Event()
    queue: list[Callable[[], bool]] = [broker_is_up.is_set]  # who has begun, or may before others: whether it is done
    with ExitStack() as stack:

        def branch(
            of: Preload,
            name: str,
            *functions: str,
            at_once: bool = False,
            env: Mapping[str, str] = env,
            main: str | None = None,
        ) -> Preload:
            before = tuple(queue)
            turn = None if at_once else lambda: [done() for done in before].count(False) < cores
            made = of.branch(functions, name=name, main=main, env=env, output=options.log(name), turn=turn)
            if not at_once:
                queue.append(lambda: made.has_loaded)
            return stack.enter_context(made)

        torch = branch(shared, "torch", "torch", at_once=True)
        explorers = branch(torch, "vllm", _VLLM, "workers.explorer.service", at_once=True)
        runners = None
        if settings.explorer.runner_python is None and settings.explorer.workflow_modules is None:
            little = environment(env, settings.explorer.runner_environment)
            made = branch(shared, "runners", f"{_FORK_SERVER}:preload", env=little, main=f"{_FORK_SERVER}:main")
            runners = made, little
        yield Preloads(
            shared=shared,
            torch=torch,
            explorers=explorers,
            runners=runners,
            trainer=branch(torch, "megatron", _MEGATRON, "workers.trainer.service"),
            broker_is_up=broker_is_up,
            console=branch(shared, "console", f"{_HERE}:yield_to_others", "workers.console.service"),
        )


def yield_to_others() -> None:
    """Have this process, and what is forked from it, wait for all others that compute."""
    os.nice(_CONSOLE_NICENESS)
