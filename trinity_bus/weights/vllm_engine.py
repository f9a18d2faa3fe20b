"""vLLM's weight-transfer interface, with transfers that overlap generation and cannot tear the weights.

A version is received into host buffers by a thread of the worker while the engine goes on generating; the front end
begins that, and hears of its end, through a side door (``door``). When the version is whole and verified, the front end
pauses generation and goes through vLLM's own phases at once: start; update, which finds the version in the buffers; and
finish, which is the only moment at which the model is touched.

::

    IDLE --door: begin--> RECEIVING --> READY --start, update, finish: loaded--> IDLE
                              |           |
                              +--FAILED---+--trinity_transfer_cancel--> IDLE

Failures: before ``finish`` nothing has happened to the model; whatever was begun is ended by
``trinity_transfer_cancel``, which vLLM itself lacks, and the next transfer works. If loading itself fails, the weights
may be a mix of two versions: ``finish`` raises ``TornWeightsError``, now and ever after, and the front end must let the
engine go.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from trinity_bus.weights.door import Door
from trinity_bus.weights.errors import TornWeightsError, WeightTransferError
from trinity_bus.weights.receiver import WeightReceiver

# It warns of layers without weights at each reload, of position embeddings among others; ``_load`` checks itself.
logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel(logging.ERROR)


@dataclass
class InitInfo(WeightTransferInitInfo):  # type: ignore[misc]  # vLLM is not type-checked
    """Nothing: each version says where it comes from."""


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]  # as above
    """Which of the versions that may have been received is to be loaded."""

    version: int
    checksum: str


class OverlappedWeightTransferEngine(WeightTransferEngine[InitInfo, UpdateInfo]):  # type: ignore[misc]  # as above
    """Receives whole versions beside generation."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    supports_draft_weight_update = False
    defers_processing = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.receiver = WeightReceiver()
        self._expected: frozenset[str] | None = None
        self.torn = False

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Nothing: connecting is left to each transfer."""

    def start_weight_update(self) -> None:
        """Nothing: the model stays as it is until ``finish_weight_update``."""

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Find the version in the buffers.

        Raises:
            WeightTransferError: Another is there, or none.
        """
        ready = self.receiver.manifest
        wanted = (update_info.version, update_info.checksum)
        if ready is None or (ready.version, ready.checksum) != wanted:
            raise WeightTransferError(f"version {update_info.version} was not received: {self.receiver.progress}")

    def finish_weight_update(self) -> None:
        """Load the version that was received. Generation must be paused.

        Raises:
            WeightTransferError: No whole version is there, or not the tensors of this model; the model is as it was.
            TornWeightsError: Loading failed half way.
        """
        if self.torn:
            raise TornWeightsError("an earlier version was loaded half way; restart the engine")
        ready = self.receiver.manifest
        names = frozenset(() if ready is None else (meta.name for meta in ready.tensors))
        if self._expected is not None and names and names != self._expected:
            odd = sorted(names ^ self._expected)[:5]
            raise WeightTransferError(f"the trainer's tensors are not those of the last version; differing: {odd}")
        tensors = self.receiver.take()
        try:
            with torch.no_grad():
                self._load(tensors)
        except Exception as error:
            self.torn = True
            raise TornWeightsError(f"loading failed half way: {error}") from error
        self._expected = names

    def _load(self, tensors: Any) -> None:
        wanted = {name for name, _ in self.model.named_parameters()}
        initialize_layerwise_reload(self.model)
        loaded = self.model.load_weights(tensors)
        finalize_layerwise_reload(self.model, self.model_config)
        self._refresh_tied()
        # A layer that gets nothing keeps its old weights, and vLLM only warns of it.
        if loaded is not None and (missing := wanted - set(loaded)):
            raise WeightTransferError(f"the trainer sent nothing for {sorted(missing)[:5]}")

    def _refresh_tied(self) -> None:
        """Process the layers again whose weight is another layer's, such as an output layer tied to the embeddings.

        A reload passes them by, because no weight has their name. They see the new values, but not what vLLM derived
        of the old ones: on a CPU, a copy packed for oneDNN, with which it would go on computing.
        """
        owners: dict[int, torch.nn.Module] = {}
        for layer in self.model.modules():
            weight = getattr(layer, "weight", None)
            if not isinstance(weight, torch.Tensor) or weight.numel() == 0:
                continue
            if owners.setdefault(weight.data_ptr(), layer) is not layer and hasattr(layer, "quant_method"):
                layer.quant_method.process_weights_after_loading(layer)

    def shutdown(self) -> None:
        """Let go of the trainer."""
        self.receiver.close()


class WorkerExtension:
    """Mixed into vLLM's worker: what its own interface lacks, called by name from the front end."""

    weight_transfer_engine: OverlappedWeightTransferEngine
    _weight_update_active: bool

    rank: int

    # Methods of the worker that this is mixed into.
    start_weight_update: Callable[[], None]
    update_weights: Callable[[dict[str, Any]], None]
    finish_weight_update: Callable[[], None]

    def trinity_open_door(self, folder: str) -> str:
        """Open this worker's door in a folder of the front end's; its path. Once."""
        path = Path(folder) / f"{self.rank}.sock"
        self.trinity_door = Door(self.weight_transfer_engine.receiver, path)
        return str(path)

    def trinity_transfer_load(self, update_info: dict[str, Any]) -> None:
        """VLLM's three phases at once, because each call is a round trip during which generation stands still."""
        self.start_weight_update()
        self.update_weights(update_info)
        self.finish_weight_update()

    def trinity_transfer_cancel(self) -> bool:
        """End a session without touching the model; True where an earlier load has already torn the weights."""
        self.weight_transfer_engine.receiver.cancel()
        self.weight_transfer_engine.reset_weight_update_target()
        self._weight_update_active = False
        return self.weight_transfer_engine.torn
