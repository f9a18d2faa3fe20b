"""What rank 0 tells the other ranks of a trainer, and what they answer. Pure; ``ranks`` and ``rank`` move the bytes.

Training on several ranks is a series of *calls* that all of them make together, each with collectives in it. Rank 0
decides which comes next, sends it to the others, and makes it itself; so all make the same ones in the same order. A
call is *settled* when every other rank has answered it, and none is sent before the one before it is settled::

    rank 0                                     rank 1, rank 2, ...
      Order(1, Join) ----------------------->  are of this version, see the same folder of checkpoints, have a device
      Order(2, Build) ---------------------->  join the process groups, build the engine
      Order(3, Load) ----------------------->  go back to the newest checkpoint
      Order(4, Train), sample, ... --------->  train on its shard of them   <--- collectives among all ranks --->
      Order(5, Save) ----------------------->  write their part of the checkpoint
      Order(6, Gather) --------------------->  give their part of the weights
      Order(7, Export) --------------------->  the same
      Order(8, Leave) ---------------------->  leave the process groups, end
      <-- RankAnswer(n, Done(step)) after each, or RankAnswer(n, Failed(why)), after which the rank ends
      Order(0, Disband) -------------------->  end: in place of Join, and without an answer

    PendingCalls (rank 0):  SETTLED --call()--> CALLED --Done of every rank--> SETTLED
                            |                   |--another step than rank 0: RankError
                            '-------------------'--Failed, or an end: LOST, for good; RankError says rank and reason
    Turns (others):         Join first and once, then numbers that rise by one; else RankError, and the rank ends

Join has no collective in it: whoever cannot take part is refused before anything waits for it. All are messages on a
line (``rank_lines``); the samples of a rank's shard are messages of their own, update after update.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from msgspec import Struct, msgpack, structs

from schemas.experience import ExperienceGroup
from trinity_bus.runtime.frames import Dialect
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


class Join(Struct, frozen=True, tag=True):
    # Of this project, which must be the same on all machines
    version: str
    # Of the checkpoints, which all machines share; empty where there are none
    folder: str = ""
    # In that folder; see ``shared_folder``
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


class Export(Struct, frozen=True, tag=True):
    path: str


class Leave(Struct, frozen=True, tag=True):
    pass


class Disband(Struct, frozen=True, tag=True):
    pass


type Call = Join | Build | Load | Train | Save | Gather | Export | Leave


class Order(Struct, frozen=True, array_like=True):
    number: int
    call: Call | Disband


class Done(Struct, frozen=True, tag=True):
    # At which the rank's engine is; 0 where it has none any more
    step: int
    # What it has kept of single tokens, after Train
    figures: list[SampleFigures] = []


class Failed(Struct, frozen=True, tag=True):
    why: str


class RankAnswer(Struct, frozen=True, array_like=True):
    number: int
    result: Done | Failed


# Of a sample's arrays; all others are float32
_DTYPES: Final = {"tokens": np.int32, "mask": np.bool_, "routes": np.uint8}


def train_order(step: StepPlan) -> tuple[Train, list[bytes]]:
    """Return the call that trains on a rank's shard of a step, and the samples that follow it."""
    updates = tuple(UpdateShard(len(u.samples), u.divisor, u.weight) for u in step.updates)
    return Train(updates, step.trained_tokens), [encode_sample(s) for u in step.updates for s in u.samples]


def step_of(order: Train, read: Callable[[], TrainSample]) -> StepPlan:
    """Return the step of :func:`train_order`, whose samples are ``read`` one after another."""
    return StepPlan(
        updates=[
            Update(samples=[read() for _ in range(u.samples)], divisor=u.divisor, weight=u.weight)
            for u in order.updates
        ],
        trained_tokens=order.trained_tokens,
    )


def encode_sample(sample: TrainSample) -> bytes:
    values = structs.asdict(sample)
    return msgpack.encode({n: v.tobytes() if isinstance(v, np.ndarray) else v for n, v in values.items()})


def decode_sample(body: bytes) -> TrainSample:
    values = msgpack.decode(body)
    arrays = {n: np.frombuffer(v, _DTYPES.get(n, np.float32)) if isinstance(v, bytes) else v for n, v in values.items()}
    if (routes := arrays["routes"]) is not None:
        arrays["routes"] = routes.reshape(len(arrays["tokens"]), -1)
    return TrainSample(**arrays)


ORDERS: Dialect[Order] = Dialect(Order, limit=1 << 20)
# Twice what figures may be: a sample of few tokens has as much beside them
ANSWERS: Dialect[RankAnswer] = Dialect(RankAnswer, limit=2 * token_figures.MAX_BYTES)


@dataclass(slots=True)
class Turns:
    """A follower's side: which order may come next."""

    last: int = 0

    def take(self, order: Order) -> None:
        """RankError where it is not the next, or Join does not come first and once."""
        if order.number != self.last + 1:
            raise RankError(f"order {order.number} came after order {self.last}: one is missing")
        if isinstance(order.call, Join) != (self.last == 0):
            raise RankError(f"order {order.number} is {_name(order.call)}; the first one, and no other, is Join")
        self.last = order.number


@dataclass(slots=True)
class PendingCalls:
    """Rank 0's side: what was called, who has answered, who is lost."""

    world_size: int
    # Who was lost first, and why
    lost: str | None = None
    _number: int = 0
    _call: Call | None = None
    _steps: dict[int, int] = field(default_factory=dict)
    _figures: list[SampleFigures] = field(default_factory=list)

    @property
    def settled(self) -> bool:
        return self._call is None or not self.waiting

    @property
    def waiting(self) -> list[int]:
        return [rank for rank in range(1, self.world_size) if rank not in self._steps]

    @property
    def leaving(self) -> bool:
        return isinstance(self._call, Leave)

    def call(self, call: Call) -> int:
        """Return the number of the next call; RankError where a rank is lost, or has not answered the call before."""
        if self.lost is not None:
            raise RankError(self.lost)
        if self._call is not None and self.waiting:
            raise RankError(f"{_name(call)} was called before {_name(self._call)} was settled")
        self._number += 1
        self._call = call
        self._steps, self._figures = {}, []
        return self._number

    def answered(self, rank: int, answer: RankAnswer) -> None:
        if answer.number != self._number or rank in self._steps:
            self._lose(rank, f"answered order {answer.number}, where order {self._number} was the last")
        elif isinstance(answer.result, Failed):
            self._lose(rank, f"failed in {_name(self._call)}: {answer.result.why}")
        else:
            self._steps[rank] = answer.result.step
            self._figures += answer.result.figures

    def take_figures(self) -> list[SampleFigures]:
        """Return what the answers to the last call brought, once."""
        figures, self._figures = self._figures, []
        return figures

    def spoke_nonsense(self, rank: int, why: str) -> None:
        self._lose(rank, f"sent what cannot be read ({why})")

    def ended(self, rank: int, how: str) -> None:
        """Take note that a rank has ended; after Leave that is as it should be.

        ``how``: such as ``"(process 42) was ended by SIGKILL"``.
        """
        if self.leaving:
            # A rank that died over it owes an answer no more.
            self._steps.setdefault(rank, 0)
            return
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


def _name(call: Call | Disband | None) -> str:
    return type(call).__name__
