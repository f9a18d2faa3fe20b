"""A rank of a trainer other than the first: it makes the calls of ``rank_protocol`` that a ``RankLine`` tells.

::

    IDLE --Join--> WAITING --call--> CALLED --made: Done--> WAITING --Leave--> IDLE
      |               |                 '--an error: Failed--------------------------> FAILED
      |--Leave--------|-----------------------------------------------------------> DISMISSED
      '---------------'--rank 0 ends the line---------------------------------------> ORPHANED

``python -m trinity_bus.training.ranks.rank SOCKET RANK LEVEL`` is such a rank as a child process of rank 0, at the
other end of a socket pair.

Failures: an error ends it, after it has told rank 0 why. Rank 0 dies: the guard that a child runs under kills it, also
within a collective; a rank that a launcher has started sees to that itself. SIGTERM and SIGINT are for rank 0 to act
on, and ignored here.
"""

import logging
import re
import signal
import socket
import sys
import warnings
from collections import deque
from enum import Enum, auto
from importlib.metadata import version
from pathlib import Path

from trinity_bus.config import TrainerSettings
from trinity_bus.errors import TrinityError
from trinity_bus.runtime.ports import is_loopback
from trinity_bus.telemetry.logs import FORMAT, console
from trinity_bus.training.checkpoint import TrainingProgress
from trinity_bus.training.engines.megatron_engine import MegatronEngine
from trinity_bus.training.errors import RankError
from trinity_bus.training.megatron import parallel
from trinity_bus.training.ranks import rank_protocol as protocol
from trinity_bus.training.ranks.launch import join_store
from trinity_bus.training.steps.packing import TrainSample

log = logging.getLogger(__name__)


class Outcome(Enum):
    # It could not make a call, and has said why
    FAILED = auto()
    # Rank 0 has ended as it should
    DISMISSED = auto()
    # Rank 0 is gone without a word
    ORPHANED = auto()


class Rank:
    def __init__(self, rank: int, local_rank: int, line: protocol.RankLine) -> None:
        self._rank = rank
        self._local_rank = local_rank
        self._line = line
        self._engine: MegatronEngine | None = None

    def make(self, call: protocol.Call) -> protocol.Done:
        match call:
            case protocol.Join():
                self._join(call)
            case protocol.Build():
                self._engine = self._build(call)
            case protocol.Leave():
                self._engine = None
                parallel.shut_down()
            case _:
                if self._engine is None:
                    raise RankError(f"{type(call).__name__} came before Build")
                self._follow(self._engine, call)
        engine = self._engine
        return protocol.Done(0) if engine is None else protocol.Done(engine.progress.step, engine.take_figures())

    def _join(self, call: protocol.Join) -> None:
        if call.version != (ours := version("trinity-bus")):
            raise RankError(
                f"this machine has trinity-bus {ours}, rank 0's has {call.version}: install one version on all machines"
            )
        if call.folder and not _sees(Path(call.folder), call.mark):
            raise RankError(
                f"this machine does not see rank 0's {call.folder}: trainer.checkpoint_dir must be one folder that all "
                "machines share, under the same path"
            )
        parallel.check_device(self._local_rank)

    def _build(self, call: protocol.Build) -> MegatronEngine:
        settings = TrainerSettings.model_validate_json(call.settings)
        store = join_store(call.store_host, call.store_port, timeout_s=protocol.LIMIT_S)
        world = parallel.World(
            self._rank, call.world_size, self._local_rank, store, on_this_machine=is_loopback(call.store_host)
        )
        return MegatronEngine(settings, world)

    def _follow(self, engine: MegatronEngine, call: protocol.Call) -> None:
        match call:
            case protocol.Load(directory, through):
                engine.load_latest(Path(directory), through=through)
            case protocol.Train():
                engine.train(protocol.step_of(call, self._sample))
            case protocol.Save(directory, progress):
                engine.save_checkpoint(Path(directory), TrainingProgress.model_validate_json(progress))
            case protocol.Gather(adapter):
                deque(engine.adapter_tensors() if adapter else engine.hf_tensors(), maxlen=0)

    def _sample(self) -> TrainSample:
        body = self._line.receive(protocol.SAMPLE_BYTES)
        if body is None:
            raise RankError("rank 0 ended within a batch")
        return protocol.decode_sample(body)


def _sees(folder: Path, mark: str) -> bool:
    return re.fullmatch(re.escape(protocol.MARK) + "[0-9a-f]{16}", mark) is not None and (folder / mark).exists()


def follow(line: protocol.RankLine, rank: int, local_rank: int) -> Outcome:
    follower, is_idle = Rank(rank, local_rank, line), True
    while (body := line.receive(protocol.CALLS.limit)) is not None:
        call = protocol.CALLS.decode(body)
        if is_idle and isinstance(call, protocol.Leave):
            return Outcome.DISMISSED
        is_idle = isinstance(call, protocol.Leave)
        try:
            answer: protocol.Done | protocol.Failed = follower.make(call)
        except Exception as error:
            if not isinstance(error, TrinityError):
                log.exception("%s cannot be made", type(call).__name__)
            answer = protocol.Failed(f"{type(error).__name__}: {error}"[: protocol.MAX_WHY])
        try:
            line.send([protocol.ANSWERS.encode(answer)])
        except OSError:
            break  # rank 0 is gone
        if isinstance(answer, protocol.Failed):
            return Outcome.FAILED
    return Outcome.ORPHANED


def prepare(rank: int, level: int) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    console(level, template=FORMAT.replace("%(name)s", f"rank {rank} %(name)s"))
    # Rank 0 has the same to warn of.
    warnings.simplefilter("ignore")


def main() -> None:
    descriptor, rank, level = map(int, sys.argv[1:])
    prepare(rank, level)
    outcome = follow(protocol.PairLine(socket.socket(fileno=descriptor)), rank, rank)
    sys.exit(int(outcome is Outcome.FAILED))


if __name__ == "__main__":
    main()
