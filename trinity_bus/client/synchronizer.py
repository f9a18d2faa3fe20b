"""``Synchronizer``: which version of the model there is, who serves it, and which is to be served, from any process.

::

    NEW --prepare()--> READY --shutdown()--> CLOSED --prepare()--> READY
                         |
                         '--the log is gone--> every method raises what was raised

Nothing is moved through this object, and it holds no state of the mesh: it reads ``version-history``,
``model-versions`` and the three topics of events, and writes commands. What the reference's actor is told by its
modules is told by the services here, as events; docs/counterparts.md has the whole table.

==================================  ===================================================================================
what fails                          what happens
==================================  ===================================================================================
a version does not come             ``TimedOutError``; nothing is left behind by having waited
the trainer has stopped             a wait for a new version returns the present one
the version is gone                 ``publish_version`` raises ``RefusedError``, with the versions that can be had
no coordinator answers              ``NoCoordinatorError``
==================================  ===================================================================================
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from schemas import CommandReply, PublishVersion, RollBack
from schemas.topics import EVENTS, MODEL_VERSIONS, OPERATOR_COMMANDS, VERSION_HISTORY
from trinity_bus import awake
from trinity_bus.bus import Bus
from trinity_bus.client.connection import Connected, Connection, tell_unused
from trinity_bus.config import Settings
from trinity_bus.errors import NotStartedError, RefusedError, TimedOutError
from trinity_bus.training.checkpoint import CONFIG
from trinity_bus.view import MeshFollower, MeshState, VersionRow, follow

if TYPE_CHECKING:
    import torch

type TrainerStatus = Literal["running", "stopped"]
type TensorDescription = tuple[str, str, tuple[int, ...]]  # name, dtype such as ``bfloat16``, shape

# Of the reference, by the states of explorers.
_STATUSES = {
    "starting": "require_sync",
    "ready": "running",
    "syncing": "require_sync",
    "draining": "running",
    "stopped": "stopped",
}
_TOPICS = (VERSION_HISTORY, MODEL_VERSIONS, *EVENTS)
_LOOK_S = 1.0  # silence is news too: who waits looks again after so much of it
WEIGHTS = "model.safetensors"


class Synchronizer(Connected):
    """Model versions. Reads what the log holds now when it is prepared.

    Args:
        settings: Also the model's name; for this, ``bus`` and ``name`` see :class:`Connected`.
        module_ref: Not used, with a line in the log: who is there is told by heartbeats.
        clock: Seconds, steady, to tell who has fallen silent.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        module_ref: object = None,
        *,
        bus: Bus | None = None,
        name: str = "synchronizer",
        clock: Callable[[], float] = awake.now,
    ) -> None:
        tell_unused(module_ref)
        self._settings = settings if settings is not None else Settings()
        super().__init__(self._settings, bus, name, [*_TOPICS, OPERATOR_COMMANDS])
        self._clock = clock
        self._mesh: MeshFollower | None = None

    @classmethod
    def get_actor(
        cls, settings: Settings | None = None, namespace: str | None = None, *, bus: Bus | None = None
    ) -> Self:
        """Return a client of its own, not yet prepared: there is no one actor to share, the state is on the log."""
        settings = settings if settings is not None else Settings()
        if namespace is not None:
            settings = settings.model_copy(update={"kafka": settings.kafka.model_copy(update={"namespace": namespace})})
        return cls(settings, bus=bus)

    _NOT_YET = "not prepared: await prepare() first."
    prepare = Connected.start
    shutdown = Connected.stop

    async def _opened(self, connection: Connection) -> None:
        state = MeshState(self._settings.mesh.model)
        following = follow(connection.bus, topics=_TOPICS, state=state, clock=self._clock)
        self._mesh = await connection.stack.enter_async_context(following)

    # -- who is there ------------------------------------------------------------------------------------------------

    def get_trainer_status(self) -> TrainerStatus:
        """Return ``running``, or ``stopped`` where it has never spoken or not lately. It never waits for a sync."""
        return "running" if self._now().trainer_is_alive else "stopped"

    def get_explorer_status_counts(self) -> dict[str, int]:
        """How many explorers are ``running``, wait for weights (``require_sync``), or are ``stopped``."""
        counts: Counter[str] = Counter()
        for state, count in self._now().explorer_states().items():
            counts[_STATUSES[state]] += count
        return dict(counts)

    def trainer_requires_weight_sync(self) -> bool | None:
        """Whether a version that the trainer has published is still held; None where the trainer has stopped."""
        view = self._now()
        if not view.trainer_is_alive:
            return None
        return view.trainer is not None and view.trainer.version > view.version

    def explorer_requires_sync(self) -> bool:
        """Whether the explorers' side has asked for a version (style ``explorer_driven``) that has not come."""
        return self._now().wanted > self._now().version

    # -- versions ----------------------------------------------------------------------------------------------------

    @property
    def model_version(self) -> int:
        """The version to be served; -1 before there is any."""
        return self._now().version

    def get_latest_model_version(self) -> int:
        """Return the same as ``model_version``."""
        return self.model_version

    def get_latest_model_path(self, use_huggingface: bool = False) -> Path | None:
        """Checkpoint of the version to be served; None where none; ``use_huggingface``: or no Hugging Face folder."""
        announced = self._now().announced
        if announced is None or announced.checkpoint is None:
            return None
        folder = Path(announced.checkpoint)
        return folder if not use_huggingface or (folder / CONFIG).is_file() else None

    def versions(self) -> list[VersionRow]:
        """All versions that were ever published, oldest first."""
        return self._now().versions()

    async def wait_new_model_state_dict(
        self, current_version: int, no_wait: bool = False, *, timeout_s: float | None = None
    ) -> int:
        """Wait until another version than the caller's is to be served, and return it; with ``no_wait`` not at all.

        It is the caller's too where the trainer has stopped, and it may be an older one, which somebody has chosen.
        TimedOutError: none came within ``timeout_s``, or ``synchronizer.sync_timeout_s`` where absent.
        """
        if no_wait:
            return self.model_version
        limit = self._settings.synchronizer.sync_timeout_s if timeout_s is None else timeout_s
        async with _within(limit, f"no version but {current_version} came"):
            while self.model_version == current_version and self.get_trainer_status() == "running":
                await self._follower().changed(_LOOK_S)
        return self.model_version

    def serving(self, version: int) -> list[str]:
        """Names of the explorers that serve a version now."""
        return self._now().serving(version)

    async def wait_served(self, version: int, *, timeout_s: float, explorers: Collection[str] = ()) -> list[str]:
        """Wait until all explorers that live serve a version, and at least these; their names. Raises TimedOutError."""
        async with _within(timeout_s, f"not all explorers serve version {version}"):
            while True:
                living = {explorer.name for explorer in self._now().alive()}
                serving = self.serving(version)
                if living.union(explorers) == set(serving) != set():
                    return serving
                await self._follower().changed(_LOOK_S)

    def get_state_dict_meta(self) -> list[TensorDescription] | None:
        """Names, dtypes and shapes of the weights of the version to be served; None where they are not here."""
        from trinity_bus.weights.tensor_file import TensorFile

        path = self._weights()
        if path is None:
            return None
        with TensorFile(path) as file:
            return [(meta.name, meta.dtype, tuple(meta.shape)) for meta in file.metas]

    def get_model_state_dict(self) -> "tuple[dict[str, torch.Tensor] | None, int]":
        """Weights of the version to be served, None where they are not here, and its number. Needs torch."""
        from trinity_bus.weights.tensor_file import TensorFile

        path, version = self._weights(), self.model_version
        if path is None:
            return None, version
        with TensorFile(path) as file:
            return {meta.name: file.tensor(meta.name) for meta in file.metas}, version

    async def publish_version(self, version: int | None, *, asked_by: str | None = None) -> str:
        """Make every explorer serve this version, and no newer one until None is given: the newest again.

        Return what it costs: the batches that wait meanwhile. RefusedError: it cannot be had; the message lists those
        that can. TimedOutError: the trainer did not answer.
        """
        channel, model = self.connection.channel, self._settings.mesh.model
        return _detail(await channel.ask(PublishVersion, model=model, version=version, asked_by=asked_by))

    async def roll_back(self, version: int, *, reason: str, asked_by: str | None = None) -> str:
        """End the lineage after a version: train on from it, have explorers serve it at once, discard what is newer.

        Return what it costs: the batches that are passed over. Raises as ``publish_version`` does; without an answer,
        it is done when the trainer does.
        """
        channel, model = self.connection.channel, self._settings.mesh.model
        return _detail(await channel.ask(RollBack, model=model, version=version, reason=reason, asked_by=asked_by))

    # -- helpers -----------------------------------------------------------------------------------------------------

    def _now(self) -> MeshState:
        return self._follower().state

    def _follower(self) -> MeshFollower:
        if self._connection is None or self._mesh is None:
            raise NotStartedError(f"Synchronizer is {self._NOT_YET}")
        return self._mesh

    def _weights(self) -> Path | None:
        folder = self.get_latest_model_path()
        path = None if folder is None else folder / WEIGHTS
        return path if path is not None and path.is_file() else None


@asynccontextmanager
async def _within(seconds: float, why: str) -> AsyncIterator[None]:
    # TimedOutError, which says why that matters, when the time is over.
    limit = awake.timeout(seconds)
    try:
        async with limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise TimedOutError(f"{why} within {seconds:g} s") from None


def _detail(reply: CommandReply) -> str:
    if reply.error == "timeout":
        raise TimedOutError(reply.detail)
    if reply.error is not None:
        raise RefusedError(reply.detail)
    return reply.detail
