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
from trinity_bus.training import token_figures
from trinity_bus.training.errors import RankError
from trinity_bus.training.packing import TrainSample
from trinity_bus.training.step_plan import StepPlan, Update
from trinity_bus.training.token_figures import SampleFigures

LIMIT_S: Final = 600.0
"""How long a rank may wait for the others, within a collective or for an answer, before it fails."""
SAMPLE_BYTES: Final = 4 * ExperienceGroup.MAX_BYTES
"""Most of one sample: advantages and log-probabilities of several policies come to what is on the log. No message is
larger."""
MAX_WHY: Final = 2000
"""Characters of the reason of a failure."""


class Join(Struct, frozen=True, tag=True):
    """Show that you can take part."""

    version: str
    """Of this project, which must be the same on all machines."""
    folder: str = ""
    """Of the checkpoints, which all machines share; empty where there are none."""
    mark: str = ""
    """In that folder; see ``shared_folder``."""


class Build(Struct, frozen=True, tag=True):
    """Join the process groups and build the engine."""

    world_size: int
    store_host: str
    """Of the store in which all ranks meet."""
    store_port: int
    settings: bytes
    """``TrainerSettings`` as JSON."""


class Load(Struct, frozen=True, tag=True):
    """Go back to the newest checkpoint; see :meth:`TrainingEngine.load_latest`."""

    directory: str
    through: int | None = None


class UpdateShard(Struct, frozen=True):
    """A rank's shard of an update: see ``step_plan.Update``."""

    samples: int
    """In the messages that follow."""
    divisor: float
    weight: float


class Train(Struct, frozen=True, tag=True):
    """Train on the samples in the messages that follow."""

    updates: tuple[UpdateShard, ...]
    trained_tokens: int


class Save(Struct, frozen=True, tag=True):
    """Write a checkpoint."""

    directory: str
    progress: bytes
    """``TrainingProgress`` as JSON."""


class Gather(Struct, frozen=True, tag=True):
    """Give the weights."""

    adapter: bool = False
    """Not these, but what is trained beside them."""


class Export(Struct, frozen=True, tag=True):
    """Write the model as a Hugging Face folder."""

    path: str


class Leave(Struct, frozen=True, tag=True):
    """Leave the process groups and end."""


class Disband(Struct, frozen=True, tag=True):
    """End: there is nothing to take part in any more."""


type Call = Join | Build | Load | Train | Save | Gather | Export | Leave


class Order(Struct, frozen=True, array_like=True):
    """One call, to all ranks but the first."""

    number: int
    call: Call | Disband


class Done(Struct, frozen=True, tag=True):
    """The call is made."""

    step: int
    """At which the rank's engine is; 0 where it has none any more."""
    figures: list[SampleFigures] = []
    """What it has kept of single tokens, after Train."""


class Failed(Struct, frozen=True, tag=True):
    """It is not, and the rank ends."""

    why: str


class RankAnswer(Struct, frozen=True, array_like=True):
    """What came of an order."""

    number: int
    result: Done | Failed


_DTYPES: Final = {"tokens": np.int32, "mask": np.bool_, "routes": np.uint8}
"""Of a sample's arrays; all others are float32."""


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
    """Return a sample as a message."""
    values = structs.asdict(sample)
    return msgpack.encode({n: v.tobytes() if isinstance(v, np.ndarray) else v for n, v in values.items()})


def decode_sample(body: bytes) -> TrainSample:
    """Return the sample in a message that :func:`encode_sample` has made."""
    values = msgpack.decode(body)
    arrays = {n: np.frombuffer(v, _DTYPES.get(n, np.float32)) if isinstance(v, bytes) else v for n, v in values.items()}
    if (routes := arrays["routes"]) is not None:
        arrays["routes"] = routes.reshape(len(arrays["tokens"]), -1)
    return TrainSample(**arrays)


ORDERS: Dialect[Order] = Dialect(Order, limit=1 << 20)
ANSWERS: Dialect[RankAnswer] = Dialect(RankAnswer, limit=2 * token_figures.MAX_BYTES)
"""Twice what figures may be: a sample of few tokens has as much beside them."""


@dataclass(slots=True)
class Turns:
    """A follower's side: which order may come next."""

    last: int = 0

    def take(self, order: Order) -> None:
        """Take note of an order.

        Raises:
            RankError: It is not the next, or Join does not come first and once.
        """
        if order.number != self.last + 1:
            raise RankError(f"order {order.number} came after order {self.last}: one is missing")
        if isinstance(order.call, Join) != (self.last == 0):
            raise RankError(f"order {order.number} is {_name(order.call)}; the first one, and no other, is Join")
        self.last = order.number


@dataclass(slots=True)
class PendingCalls:
    """Rank 0's side: what was called, who has answered, who is lost.

    Args:
        world_size: Ranks, the first included.
    """

    world_size: int
    lost: str | None = None
    """Who was lost first, and why."""
    _number: int = 0
    _call: Call | None = None
    _steps: dict[int, int] = field(default_factory=dict)
    _figures: list[SampleFigures] = field(default_factory=list)

    @property
    def settled(self) -> bool:
        """Whether every rank has answered the last call."""
        return self._call is None or not self.waiting

    @property
    def waiting(self) -> list[int]:
        """The ranks whose answer to the last call is missing."""
        return [rank for rank in range(1, self.world_size) if rank not in self._steps]

    @property
    def leaving(self) -> bool:
        """Whether the ranks have been told to end."""
        return isinstance(self._call, Leave)

    def call(self, call: Call) -> int:
        """Return the number of the next call.

        Raises:
            RankError: A rank is lost, or has not answered the call before.
        """
        if self.lost is not None:
            raise RankError(self.lost)
        if self._call is not None and self.waiting:
            raise RankError(f"{_name(call)} was called before {_name(self._call)} was settled")
        self._number += 1
        self._call = call
        self._steps, self._figures = {}, []
        return self._number

    def answered(self, rank: int, answer: RankAnswer) -> None:
        """Take note of an answer."""
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
        """Take note that what a rank sent cannot be read."""
        self._lose(rank, f"sent what cannot be read ({why})")

    def ended(self, rank: int, how: str) -> None:
        """Take note that a rank has ended; after Leave that is as it should be.

        Args:
            rank: Which.
            how: Such as ``"(process 42) was ended by SIGKILL"``.
        """
        if self.leaving:
            # A rank that died over it owes an answer no more.
            self._steps.setdefault(rank, 0)
            return
        self._lose(rank, how)

    def check(self, step: int) -> None:
        """Whether all ranks are where rank 0 is, once a call is settled.

        Args:
            step: At which rank 0's engine is.

        Raises:
            RankError: One is at another step.
        """
        for rank, theirs in sorted(self._steps.items()):
            if theirs != step:
                raise RankError(f"rank {rank} is at step {theirs}, rank 0 at step {step}: they have drifted apart")

    def late(self, limit_s: float) -> str:
        """Return what to say of the ranks that have not answered in time."""
        ranks = ", ".join(map(str, self.waiting))
        return f"rank {ranks} of {self.world_size} did not answer {_name(self._call)} within {limit_s:g} s"

    def _lose(self, rank: int, how: str) -> None:
        if self.lost is None:
            self.lost = f"rank {rank} of {self.world_size} {how}"


def _name(call: Call | Disband | None) -> str:
    return type(call).__name__
