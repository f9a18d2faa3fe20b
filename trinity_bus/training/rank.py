"""``python -m trinity_bus.training.rank SOCKET RANK LEVEL``: one rank of a trainer, but for the first.

It builds an engine and makes the calls that rank 0 tells it to (``rank_protocol``); it knows of no log and publishes
nothing.

::

    WAITING --order--> CALLED --made: Done--> WAITING --Leave, or rank 0's end of the socket is closed--> ended: 0
                          '--an error: Failed--------------------------------------------------------------> ended: 1

Failures: an error ends it, after it has told rank 0 why. Rank 0 dies: the guard that this runs under kills it, also
within a collective. SIGTERM and SIGINT are for rank 0 to act on, and ignored here.
"""

import logging
import signal
import socket
import sys
import warnings
from collections import deque
from pathlib import Path
from typing import IO

from trinity_bus.config import TrainerSettings
from trinity_bus.errors import TrinityError
from trinity_bus.runtime.frames import read_frame
from trinity_bus.runtime.rendezvous import join_store
from trinity_bus.telemetry.logs import FORMAT, console
from trinity_bus.training import parallel, rank_protocol
from trinity_bus.training.checkpoint import TrainingProgress
from trinity_bus.training.errors import RankError
from trinity_bus.training.megatron_engine import MegatronEngine
from trinity_bus.training.packing import TrainSample
from trinity_bus.training.rank_protocol import (
    Call,
    Done,
    Export,
    Failed,
    Gather,
    Join,
    Leave,
    Load,
    RankAnswer,
    Save,
    Train,
    Turns,
)

log = logging.getLogger(__name__)


class Rank:
    """A follower rank, which makes the calls that the first orders.

    Args:
        rank: Its number.
        orders: What rank 0 sends.
    """

    def __init__(self, rank: int, orders: IO[bytes]) -> None:
        self._rank = rank
        self._orders = orders
        self._engine: MegatronEngine | None = None

    def make(self, call: Call) -> Done:
        """Make one call.

        Returns:
            What there is to answer.

        Raises:
            Exception: Whatever the engine raises.
        """
        if isinstance(call, Leave):
            self._engine = None
            parallel.shut_down()
            return Done(0)
        if isinstance(call, Join):
            self._engine = self._join(call)
        elif self._engine is None:
            raise RankError(f"{type(call).__name__} came before Join")
        else:
            self._follow(self._engine, call)
        return Done(self._engine.progress.step, self._engine.take_figures())

    def _join(self, call: Join) -> MegatronEngine:
        settings = TrainerSettings.model_validate_json(call.settings)
        store = join_store("127.0.0.1", call.store_port, timeout_s=rank_protocol.LIMIT_S)
        world = parallel.World(self._rank, call.world_size, self._rank, store)
        return MegatronEngine(settings, parallel.initialize(settings, world))

    def _follow(self, engine: MegatronEngine, call: Load | Train | Save | Gather | Export) -> None:
        match call:
            case Load(directory, through):
                engine.load_latest(Path(directory), through=through)
            case Train():
                engine.train(rank_protocol.step_of(call, self._sample))
            case Save(directory, progress):
                engine.save_checkpoint(Path(directory), TrainingProgress.model_validate_json(progress))
            case Gather(adapter):
                deque(engine.adapter_tensors() if adapter else engine.hf_tensors(), maxlen=0)
            case Export(path):
                engine.export_hf(Path(path))

    def _sample(self) -> TrainSample:
        body = read_frame(self._orders, rank_protocol.SAMPLE_BYTES)
        if body is None:
            raise RankError("rank 0 ended within a batch")
        return rank_protocol.decode_sample(body)


def follow(channel: socket.socket, rank: int) -> int:
    """Make calls until told to leave, or until rank 0 is gone.

    Returns:
        Exit status.
    """
    turns = Turns()
    with channel, channel.makefile("rb") as orders:
        follower = Rank(rank, orders)
        while (body := read_frame(orders, rank_protocol.ORDERS.limit)) is not None:
            order = rank_protocol.ORDERS.decode(body)
            try:
                turns.take(order)
                result: Done | Failed = follower.make(order.call)
            except Exception as error:
                if not isinstance(error, TrinityError):
                    log.exception("%s cannot be made", type(order.call).__name__)
                result = Failed(f"{type(error).__name__}: {error}"[: rank_protocol.MAX_WHY])
            try:
                channel.sendall(rank_protocol.ANSWERS.frame(RankAnswer(order.number, result)))
            except (BrokenPipeError, ConnectionResetError):
                return 0  # rank 0 is gone
            if isinstance(result, Failed) or isinstance(order.call, Leave):
                return int(isinstance(result, Failed))
    return 0


def main() -> None:
    """Follow rank 0 at the other end of a socket."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    descriptor, rank, level = map(int, sys.argv[1:])
    console(level, template=FORMAT.replace("%(name)s", f"rank {rank} %(name)s"))
    # Rank 0 has the same to warn of.
    warnings.simplefilter("ignore")
    sys.exit(follow(socket.socket(fileno=descriptor), rank))


if __name__ == "__main__":
    main()
