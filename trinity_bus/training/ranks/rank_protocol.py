"""What rank 0 tells the other ranks of a trainer, and what they answer. ``followers`` and ``rank`` call it.

All ranks run the same program: each makes the same *calls* on its own engine, in the same order, and they meet in the
collectives within. Rank 0 decides which call comes next, sends it to the others, and makes it itself. A call is
*settled* when every other rank has answered it, and none is sent before the one before it is settled::

    rank 0                            rank 1, rank 2, ...
      Join ------------------------>  are of this version, see the same run's folder of checkpoints, have a device
      Build ----------------------->  join the process groups, build the engine
      Load ------------------------>  go back to the newest checkpoint
      Train, sample, sample, ... -->  train on its shard of them   <--- collectives among all ranks --->
      Save ------------------------>  write their part of the checkpoint
      Gather ---------------------->  give their part of the weights
      Leave ----------------------->  leave the process groups; in place of Join: end, and without an answer
      <-- Done(step) after each, or Failed(why), after which the rank ends

    PendingCalls (rank 0):  SETTLED --call()--> CALLED --Done of every rank--> SETTLED
                            |                   |--another step than rank 0: RankError
                            '-------------------'--Failed, or an end: LOST, for good; RankError says rank and reason

Join has no collective in it: whoever cannot take part is refused before anything waits for it. All are messages on a
``RankLine``, which loses none and keeps their order; the samples of a rank's shard are messages of their own.

A line carries whole messages, both ways, until one of the two ranks ends it.

::

    OPEN --send, receive--> OPEN
      |--end(), or the other side's end-----------> ENDED: receive() is None, send() raises OSError
      '--a message over its limit: ProtocolError--> whoever reads ends it

A line to a process on this machine is a socket pair, here; one to a rank that a launcher has started is made by whoever
knows how to tell it from a stranger. One thread reads, one writes, and any may end it.
"""

import contextlib
import socket
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from msgspec import Struct, msgpack, structs

from schemas.experience import ExperienceGroup
from trinity_bus.runtime.frames import Dialect, head_of, read_frame
from trinity_bus.training.errors import RankError
from trinity_bus.training.steps import token_figures
from trinity_bus.training.steps.packing import TrainSample
from trinity_bus.training.steps.step_plan import StepPlan, Update
from trinity_bus.training.steps.token_figures import SampleFigures

# How long a rank may wait for the others, within a collective or for an answer, before it fails.
LIMIT_S: Final = 600.0
# Most of one sample: advantages and log-probabilities of several policies come to what is on the log. No message is
# larger.
SAMPLE_BYTES: Final = 4 * ExperienceGroup.MAX_BYTES
# Characters of the reason of a failure
MAX_WHY: Final = 2000
MARK: Final = ".seen-by-ranks-"


class Join(Struct, frozen=True, tag=True):
    # Of this project, which must be the same on all machines
    version: str
    # Of the checkpoints, which all machines share, and a file that rank 0 has just made: ``MARK`` and 16 hex digits;
    # empty where there is none
    folder: str = ""
    mark: str = ""


class Build(Struct, frozen=True, tag=True):
    world_size: int
    # Of the store in which all ranks meet
    store_host: str
    store_port: int
    # ``TrainerSettings`` as JSON
    settings: bytes


class Load(Struct, frozen=True, tag=True):
    directory: str
    through: int | None = None


class UpdateShard(Struct, frozen=True):
    # In the messages that follow
    samples: int
    divisor: float
    weight: float


class Train(Struct, frozen=True, tag=True):
    updates: tuple[UpdateShard, ...]
    trained_tokens: int


class Save(Struct, frozen=True, tag=True):
    directory: str
    # ``TrainingProgress`` as JSON
    progress: bytes


class Gather(Struct, frozen=True, tag=True):
    # Not these, but what is trained beside them
    adapter: bool = False


class Leave(Struct, frozen=True, tag=True):
    pass


type Call = Join | Build | Load | Train | Save | Gather | Leave


class Done(Struct, frozen=True, tag=True):
    # At which the rank's engine is; 0 where it has none any more
    step: int
    # What it has kept of single tokens, after Train
    figures: list[SampleFigures] = []


class Failed(Struct, frozen=True, tag=True):
    why: str


CALLS: Dialect[Call] = Dialect(Join | Build | Load | Train | Save | Gather | Leave, limit=1 << 20)
# Twice what figures may be: a sample of few tokens has as much beside them
ANSWERS: Dialect[Done | Failed] = Dialect(Done | Failed, limit=2 * token_figures.MAX_BYTES)
# Of a sample's arrays; all others are float32
_DTYPES: Final = {"tokens": np.int32, "mask": np.bool_, "routes": np.uint8, "kept": np.uint8}


def train_call(step: StepPlan) -> tuple[Train, list[bytes]]:
    updates = tuple(UpdateShard(len(u.samples), u.divisor, u.weight) for u in step.updates)
    return Train(updates, step.trained_tokens), [encode_sample(s) for u in step.updates for s in u.samples]


def step_of(call: Train, read: Callable[[], TrainSample]) -> StepPlan:
    updates = [
        Update(samples=[read() for _ in range(u.samples)], divisor=u.divisor, weight=u.weight) for u in call.updates
    ]
    return StepPlan(updates=updates, trained_tokens=call.trained_tokens)


def encode_sample(sample: TrainSample) -> bytes:
    values = structs.asdict(sample)
    return msgpack.encode({n: v.tobytes() if isinstance(v, np.ndarray) else v for n, v in values.items()})


def decode_sample(body: bytes) -> TrainSample:
    values = msgpack.decode(body)
    arrays = {n: np.frombuffer(v, _DTYPES.get(n, np.float32)) if isinstance(v, bytes) else v for n, v in values.items()}
    if (routes := arrays["routes"]) is not None:
        arrays["routes"] = routes.reshape(len(arrays["tokens"]), -1)
    return TrainSample(**arrays)


@dataclass(slots=True)
class PendingCalls:
    world_size: int
    # Who was lost first, and why
    lost: str | None = None
    _call: Call | None = None
    # At which step each rank is that has answered
    _steps: dict[int, int] = field(default_factory=dict)
    _figures: list[SampleFigures] = field(default_factory=list)

    @property
    def waiting(self) -> list[int]:
        return [] if self._call is None else [rank for rank in range(1, self.world_size) if rank not in self._steps]

    @property
    def leaving(self) -> bool:
        return isinstance(self._call, Leave)

    def call(self, call: Call) -> None:
        """RankError where a rank is lost, or has not answered the call before."""
        if self.lost is not None:
            raise RankError(self.lost)
        if self.waiting:
            raise RankError(f"{_name(call)} was called before {_name(self._call)} was settled")
        self._call, self._steps, self._figures = call, {}, []

    def answered(self, rank: int, answer: Done | Failed) -> None:
        if rank not in self.waiting:
            self._lose(rank, "answered what it was not asked")
        elif isinstance(answer, Failed):
            self._lose(rank, f"failed in {_name(self._call)}: {answer.why}")
        else:
            self._steps[rank] = answer.step
            self._figures += answer.figures

    def take_figures(self) -> list[SampleFigures]:
        figures, self._figures = self._figures, []
        return figures

    def spoke_nonsense(self, rank: int, why: str) -> None:
        self._lose(rank, f"sent what cannot be read ({why})")

    def ended(self, rank: int, how: str) -> None:
        """``how``: such as ``"(process 42) was ended by SIGKILL"``."""
        if self.leaving:
            # That is as it should be; a rank that died over it owes an answer no more.
            self._steps.setdefault(rank, 0)
        else:
            self._lose(rank, how)

    def check(self, step: int) -> None:
        """RankError where a rank's engine is at another step than rank 0's, once a call is settled."""
        for rank, theirs in sorted(self._steps.items()):
            if theirs != step:
                raise RankError(f"rank {rank} is at step {theirs}, rank 0 at step {step}: they have drifted apart")

    def late(self, limit_s: float) -> str:
        ranks = ", ".join(map(str, self.waiting))
        return f"rank {ranks} of {self.world_size} did not answer {_name(self._call)} within {limit_s:g} s"

    def _lose(self, rank: int, how: str) -> None:
        if self.lost is None:
            self.lost = f"rank {rank} of {self.world_size} {how}"


def _name(call: Call | None) -> str:
    return type(call).__name__


class RankLine(ABC):
    @abstractmethod
    def send(self, bodies: Sequence[bytes]) -> None:
        """OSError where the other side has ended, or takes nothing; ProtocolError where one is too large."""

    @abstractmethod
    def receive(self, limit: int) -> bytes | None:
        """Wait, however long; None where the other side has ended, ProtocolError for what is over the limit or none."""

    @abstractmethod
    def end(self) -> None:
        """Wake who waits, on both sides. Safe to call twice."""

    @abstractmethod
    def close(self) -> None:
        """End it and let go of it, as the thread that reads."""


class PairLine(RankLine):
    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        # Of sends only: who reads waits as long as it takes.
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(LIMIT_S), 0))
        self._file = end.makefile("rb")

    def send(self, bodies: Sequence[bytes]) -> None:
        for body in bodies:
            self._socket.sendall(head_of(body, SAMPLE_BYTES) + body)

    def receive(self, limit: int) -> bytes | None:
        return read_frame(self._file, limit)

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.end()
        self._file.close()
        self._socket.close()
