"""An adapter that is served beside the weights that the engine was started with, and exchanged in place.

vLLM knows adapters by requests: each names one, and the worker reads it from a folder when it meets it first. Here
every request names the same one (:data:`REQUEST`), from the start on, when it adds nothing; what a worker has under
that name is replaced by what was received, so no request is ever served without one, and none looks for a folder.

::

    OPEN (adds nothing) --prepare: beside generation--> PREPARED --exchange: generation paused--> OPEN (the new one)

Failures: an adapter for other weights, of no pairs of matrices, of too high a rank, or of layers that the model has
not, is refused by ``prepare``, before anything has happened. ``exchange`` leaves no adapter, or a part of one, when it
fails.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from vllm.lora.lora_model import LoRAModel
from vllm.lora.peft_helper import PEFTHelper
from vllm.lora.request import LoRARequest

from trinity_bus.weights.errors import WeightTransferError
from trinity_bus.weights.tensor_file import BASE, identity

# In every request. There can be no such folder, and a name that is not absolute would be looked up on a hub.
REQUEST = LoRARequest("trinity", 1, "/dev/null/received")

_A, _B = ".lora_A.weight", ".lora_B.weight"


class ServedAdapter:
    """The one adapter of a worker, whose model is in ``folder``. ``manager`` is vLLM's, of its model runner."""

    def __init__(self, manager: Any, folder: Path) -> None:
        self._manager, self._adapters = manager, manager._adapter_manager  # noqa: SLF001 (there is no public way)
        self._max_rank: int = manager.lora_config.max_lora_rank
        self._base = identity(folder)
        self._prepared: LoRAModel | None = None
        self._layers = {
            name for module in self._adapters.modules for name in self._adapters.packed_modules.get(module, [module])
        }
        self._put(self._adapters.create_dummy_lora(REQUEST.lora_int_id, self._max_rank, manager.embedding_modules))

    def prepare(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Make an adapter ready; called by the transfer's thread.

        ``tensors`` have PEFT's names, the ``B`` of each layer already times alpha over rank; and the base's identity.
        """
        # In host memory, wherever they were received, and copies: the buffers are those of the next version, too.
        received = {name: tensor.to("cpu", copy=True) for name, tensor in tensors}
        base = received.pop(BASE, None)
        if base is None or base.numpy().tobytes() != self._base:
            raise WeightTransferError(
                "the adapter is not for the weights that this engine has loaded: mesh.model_path is to be the same "
                "files for trainer and explorers"
            )
        rank = rank_of(received, self._max_rank)
        # A scale of 1.
        adapter = LoRAModel.from_lora_tensors(
            REQUEST.lora_int_id,
            received,
            PEFTHelper(r=rank, lora_alpha=rank, target_modules=[]),
            device="cpu",
            dtype=self._manager.lora_config.lora_dtype,
        )
        if unknown := sorted(adapter.loras.keys() - self._layers):
            raise WeightTransferError(f"the adapter is for layers that this model has not: {unknown[:5]}")
        self._prepared = adapter

    def exchange(self) -> None:
        """Serve what was prepared last. The model must not compute meanwhile."""
        assert self._prepared is not None  # noqa: S101 - the transfer is ready
        adapter, self._prepared = self._prepared, None
        self._adapters.remove_adapter(REQUEST.lora_int_id)
        self._put(adapter)

    def _put(self, adapter: LoRAModel) -> None:
        self._adapters.add_adapter(adapter)
        self._adapters.activate_adapter(REQUEST.lora_int_id)


def rank_of(received: Mapping[str, torch.Tensor], most: int) -> int:
    """Return the rank of all pairs of an adapter's matrices, by PEFT's names; WeightTransferError if over ``most``."""
    a, b = ({name.removesuffix(end) for name in received if name.endswith(end)} for end in (_A, _B))
    if not a or a != b or len(received) != 2 * len(a):
        raise WeightTransferError("the adapter is not pairs of lora_A and lora_B")
    ranks = {received[name + _A].shape[0] for name in a} | {received[name + _B].shape[-1] for name in a}
    if len(ranks) != 1 or (rank := ranks.pop()) > most:
        raise WeightTransferError(f"the adapter is not of one rank of at most {most}")
    return int(rank)
