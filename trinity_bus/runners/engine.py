"""What an explorer needs of an engine. ``trinity_bus.inference.engine.InferenceEngine`` is the real one."""

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from schemas import Member, ModelVersion, Sampling
from schemas.groups.trainable import Bounds
from trinity_bus.chat.messages import Completion
from trinity_bus.inference.completion import Watch
from trinity_bus.inference.concurrency import EngineLoad, Steps
from trinity_bus.inference.errors import EngineDeadError
from trinity_bus.inference.weight_sync import SyncOutcome


class ExplorerEngine(Protocol):
    @property
    def bounds(self) -> Bounds:
        """What its model can be trained on."""

    @property
    def model_version(self) -> int:
        """The version that it serves; -1 before any that was announced."""

    @property
    def tells_versions(self) -> bool:
        """Whether it tells those who watch; else with the end of a response alone."""

    @property
    def steps(self) -> Steps: ...

    @property
    def tokens_generated(self) -> int: ...  # since its start

    @property
    def load(self) -> EngineLoad | None:
        """How busy it is; None where it does not tell."""

    async def generate(
        self,
        prompt_token_ids: Sequence[int],
        sampling: Sampling,
        n: int = 1,
        traceparent: str | None = None,
        *,
        watch: Watch | None = None,
        trained: bool = False,
    ) -> Sequence[Completion]:
        """Draw ``n`` responses; cancelled, the engine stops drawing them.

        ``watch`` is given what tells how far they are. None of the tokens that it tells of is the end of a response
        that goes on. ``trained``: whether they may be, so ``kept`` is to be told.
        """

    def stream(
        self,
        prompt_token_ids: Sequence[int],
        sampling: Sampling,
        n: int = 1,
        traceparent: str | None = None,
        *,
        trained: bool = False,
    ) -> AsyncGenerator[tuple[int, Completion]]:
        """Draw ``n`` responses; yield which of them has got more, and what: see ``Completion``.

        Only the last of a response has versions.
        """

    async def score(self, token_ids: Sequence[int], start: int) -> list[float]:
        """Return the log-probability of each token of a sequence from ``start`` on, at temperature 1."""

    async def sync_weights(self, announced: ModelVersion, member: Member) -> SyncOutcome:
        """Take over a version; raises ``WeightTransferError`` and serves what it served before."""

    async def wait_dead(self) -> EngineDeadError: ...
