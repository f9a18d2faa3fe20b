"""The engine of a trainer with several ranks, as rank 0 sees it: every call goes to the other ranks first.

    call to the others --> the same call here --> answers of the others, whose engines must be at the same step

A step is planned here, and each rank is sent its shard of it. Ranks meet in a store that rank 0 opens where its others
can reach it: on the loopback interface where they are its children. On GPUs each takes the one of its number on its
machine.

Failures: ``RankError`` where another rank is lost, late, or elsewhere. After any error the engine is of no use; only
``leave`` is left, which kills the others where they cannot be asked.
"""

import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from importlib.metadata import version
from pathlib import Path

import torch

from schemas.experience import ExperienceGroup
from schemas.record import Metrics
from trinity_bus.config import TrainerSettings
from trinity_bus.runtime.ports import is_loopback
from trinity_bus.training.checkpoint import TrainingProgress
from trinity_bus.training.engine import TrainingEngine
from trinity_bus.training.engines.megatron_engine import MegatronEngine
from trinity_bus.training.errors import RankError
from trinity_bus.training.megatron import parallel
from trinity_bus.training.megatron.parallel import World
from trinity_bus.training.ranks import rank_protocol as protocol
from trinity_bus.training.ranks.followers import Followers
from trinity_bus.training.ranks.launch import serve_store
from trinity_bus.training.steps.packing import TrainSample
from trinity_bus.training.steps.token_figures import SampleFigures

log = logging.getLogger(__name__)


class MultiRankEngine(TrainingEngine):
    """``settings`` say how many tokens go through at once: ranks that hold parts of one model need the same number."""

    def __init__(self, settings: TrainerSettings, followers: Followers) -> None:
        world_size, host = followers.world_size, followers.host
        self._followers = followers
        self._join(settings.checkpoint_dir)
        store = serve_store(host, timeout_s=protocol.LIMIT_S)
        with self._together(protocol.Build(world_size, host, store.port, settings.model_dump_json().encode())):
            world = World(0, world_size, 0, store, on_this_machine=is_loopback(host))
            self._engine = MegatronEngine(settings, world)
        self.source, self.device_type, self.dtype = self._engine.source, self._engine.device_type, self._engine.dtype

    def _join(self, directory: Path | None) -> None:
        # Have the others show that they can take part, before anything is loaded
        parallel.check_device(0)
        join = protocol.Join(version("trinity-bus"))
        with contextlib.ExitStack() as stack:
            if directory is not None:
                directory.mkdir(parents=True, exist_ok=True)
                # A copy of the folder has all that it has, but not what is made now.
                mark = directory / f"{protocol.MARK}{secrets.token_hex(8)}"
                mark.touch()
                stack.callback(mark.unlink, missing_ok=True)
                # As they are to find it: relative to where this process is, another one need not be.
                join = protocol.Join(join.version, str(directory.absolute()), mark.name)
            self._followers.begin(join)
            self._followers.settle(0)

    @property
    def progress(self) -> TrainingProgress:
        # The others learn all but the step when a checkpoint is written.
        return self._engine.progress

    @progress.setter
    def progress(self, progress: TrainingProgress) -> None:
        self._engine.progress = progress

    def train_step(
        self,
        groups: Sequence[ExperienceGroup],
        *,
        seed: int | None = None,
        examples: Sequence[TrainSample] = (),
    ) -> Metrics:
        began = time.perf_counter()
        engine, layout = self._engine, self._engine.layout
        step = engine.plan(groups, seed, examples)
        ranks, share = layout.data_parallel, engine.shares_prompts
        shards = [step.shard(rank, ranks, share=share) for rank in range(ranks)]
        calls = [protocol.train_call(shard) for shard in shards]
        with self._together(lambda rank: calls[layout.data_rank_of(rank)]):
            metrics = engine.train(shards[0])
        return {**step.metrics, **metrics, "seconds": time.perf_counter() - began}

    def take_figures(self) -> list[SampleFigures]:
        return [*self._engine.take_figures(), *self._followers.take_figures()]

    def interrupt(self) -> None:
        # The others then wait in vain until :meth:`leave` kills them.
        self._engine.interrupt()

    def hf_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        return self._gathered(protocol.Gather(), self._engine.hf_tensors())

    def adapter_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        return self._gathered(protocol.Gather(adapter=True), self._engine.adapter_tensors())

    def _gathered(
        self, call: protocol.Gather, tensors: Iterator[tuple[str, torch.Tensor]]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        # Whoever stops on the way can make no further call.
        with self._together(call):
            yield from tensors

    def save_checkpoint(self, directory: Path, progress: TrainingProgress, *, as_hf: bool = True) -> "Future[Path]":
        with self._together(protocol.Save(str(directory), progress.model_dump_json().encode())):
            return self._engine.save_checkpoint(directory, progress, as_hf=as_hf)

    def load_latest(self, directory: Path, *, through: int | None = None) -> TrainingProgress | None:
        with self._together(protocol.Load(str(directory), through)):
            return self._engine.load_latest(directory, through=through)

    def leave(self) -> None:
        """End the other ranks, politely where they can listen, and leave the process groups."""
        try:
            if self._followers.ready:
                self._followers.begin(protocol.Leave())
                self._engine.leave()
                self._followers.settle(None)
        except RankError as error:
            # It would have ended anyway, and nothing that is worth keeping was left to do.
            log.warning("while the ranks left: %s", error)
        finally:
            self._followers.end()
            self._engine.leave()

    @contextlib.contextmanager
    def _together(self, call: protocol.Call | Callable[[int], tuple[protocol.Call, Sequence[bytes]]]) -> Iterator[None]:
        # Within, this rank makes the call that the others make.
        self._followers.begin(call)
        with self._followers.explained():
            yield
        self._followers.settle(self._engine.progress.step)
