"""vLLM's weight-transfer interface, with transfers that overlap generation and cannot tear the weights.

A version is received by a thread of the worker while the engine goes on generating; the front end begins that, and
hears of its end, through ``control``. On a CPU the same thread then loads it into a shadow of the model (``loading``).
When it is ready, the front end pauses generation and goes through vLLM's own phases at once. ``finish`` is the only
moment at which the model is touched: the shadow is exchanged with it, or the version is loaded. Adapters (``adapter``)
are exchanged on any device. On GPUs there is no shadow: memory is short, and captured graphs know the addresses of
parameters.

::

    IDLE --control: begin--> RECEIVING -whole, verified--> (on a CPU: loading into the shadow) --> READY
                              |                                    |                               |
                              +--------------FAILED----------------+    IDLE <--start, update, finish
                                               |
                                               +--trinity_transfer_cancel--> IDLE

Failures: before ``finish`` nothing has happened to the model; whatever was begun is ended by
``trinity_transfer_cancel``, which vLLM itself lacks, and the next transfer works. A shadow into which loading has
failed is given up. If loading into the model itself fails, the weights may be a mix of two versions: ``finish`` raises
``TornWeightsError``, now and ever after, and the front end must let the engine go.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from vllm.config import set_current_vllm_config
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo

from trinity_bus.runtime.memory import give_back_memory
from trinity_bus.weights.errors import TornWeightsError, WeightTransferError
from trinity_bus.weights.layout import TransferManifest
from trinity_bus.weights.receiver import WeightReceiver
from trinity_bus.weights.vllm.adapter import ServedAdapter
from trinity_bus.weights.vllm.control import ControlServer
from trinity_bus.weights.vllm.kept import telling_kept
from trinity_bus.weights.vllm.loading import Shadow, elements, load

# How long a thread of the worker keeps the interpreter while another wants it; Python's default is 5 ms
_SWITCH_S = 0.0005
_NICE = 5  # Of what it gives way to, a third of the weight: enough to be preempted, and not to starve beside training


@dataclass
class InitInfo(WeightTransferInitInfo):  # type: ignore[misc]  # vLLM is not type-checked
    """Nothing: each version says where it comes from."""


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]  # as above
    """Nothing: it is the version that was received, and no other one is begun before it is loaded."""


class OverlappedWeightTransferEngine(WeightTransferEngine[InitInfo, UpdateInfo]):  # type: ignore[misc]  # as above
    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    supports_draft_weight_update = False
    defers_processing = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._beside = self.device.type == "cpu" and self.model_config.enforce_eager
        self.receiver = WeightReceiver(
            prepare=self._prepare,
            limit_bytes=_most_bytes(self.model, self.parallel_config),
            device=self.device,
            shared=self.parallel_config is not None and self.parallel_config.world_size > 1,
        )
        # Held by the transfer that loads into the shadow; one that was cancelled may still be at it
        self._loading = threading.Lock()
        self._shadow: Shadow | None = None
        self._adapter: ServedAdapter | None = None
        self._expected: frozenset[str] | None = None
        self.torn = False

    @property
    def serves_adapter(self) -> bool:
        return self._adapter is not None

    def serve_adapter(self, manager: Any) -> None:
        with set_current_vllm_config(self.vllm_config):
            self._adapter = ServedAdapter(manager, Path(self.model_config.model))

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Nothing: connecting is left to each transfer."""

    def start_weight_update(self) -> None:
        """Nothing: the model stays as it is until ``finish_weight_update``."""

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Nothing: it is in the buffers, proven."""

    def finish_weight_update(self) -> None:
        """Load the version that was received; generation is paused. WeightTransferError: the model is as it was."""
        if self.torn:
            raise TornWeightsError("an earlier version was loaded half way; restart the engine")
        ready = self.receiver.manifest
        if ready is None:
            raise WeightTransferError(f"no version is ready: {self.receiver.progress}")
        self._check_names(ready)
        tensors = self.receiver.take()
        try:
            if self._adapter is not None:
                self._adapter.exchange()
            elif self._beside:
                assert self._shadow is not None  # noqa: S101 - the transfer is ready
                self._shadow.exchange()
            else:
                load(self.model, self.model_config, tensors)
        except Exception as error:
            self.torn = True
            raise TornWeightsError(f"loading failed half way: {error}") from error
        self._expected = _names(ready)

    def _check_names(self, manifest: TransferManifest) -> None:
        # The tensors have other names than those of the last version: this cannot be this model.
        if self._expected is not None and _names(manifest) != self._expected:
            odd = sorted(_names(manifest) ^ self._expected)[:5]
            raise WeightTransferError(f"the trainer's tensors are not those of the last version; differing: {odd}")

    def _prepare(self, manifest: TransferManifest, tensors: Iterator[tuple[str, torch.Tensor]]) -> None:
        # Called by the transfer's thread, beside generation.
        if self._adapter is None and not self._beside:
            return
        self._check_names(manifest)
        with self._loading:
            # It is given up unless all goes well.
            shadow, self._shadow = self._shadow, None
            try:
                if self._adapter is not None:
                    self._adapter.prepare(tensors)
                else:
                    shadow = shadow or Shadow(self._default_model)
                    with set_current_vllm_config(self.vllm_config):
                        shadow.load(self._default_model_config, tensors)
                    # What was packed for the processor, and what was drawn meanwhile, has left a heap in pieces.
                    give_back_memory()
            except WeightTransferError:
                raise
            except Exception as error:
                raise WeightTransferError(f"the version cannot be loaded: {error}") from error
            self._shadow = shadow

    def shutdown(self) -> None:
        self.receiver.close()


def _most_bytes(model: torch.nn.Module, parallel: Any) -> int:
    # Each of its ranks holds a part of the model; an element travels as eight bytes at most; and what is tied here may
    # come twice.
    ranks = 1 if parallel is None else int(parallel.world_size)
    return 2 * 8 * ranks * elements(model)


def _names(manifest: TransferManifest) -> frozenset[str]:
    return frozenset(meta.name for meta in manifest.tensors)


def _make_way(device: torch.device) -> None:
    # Threads of transfers run as soon as they have something to do, beside this one, which computes. A version is
    # delayed by each wait of theirs, and they have little to do between the waits. On a CPU the thread that computes is
    # never idle while there are requests; it gives way to others on its cores, too: to the explorer's event loop, and
    # to the coordinator and the broker where they are here. Threads that exist keep their priority.
    sys.setswitchinterval(_SWITCH_S)
    # Elsewhere than on Linux, threads have no priority of their own.
    if device.type == "cpu" and sys.platform == "linux":
        # Added to what the process was started with: to give less would need a right that a container does not have.
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + _NICE)


class WorkerExtension:
    """Mixed into vLLM's worker: what its own interface lacks, called by name from the front end."""

    weight_transfer_engine: OverlappedWeightTransferEngine
    _weight_update_active: bool

    rank: int
    vllm_config: Any
    model_runner: Any

    # Methods of the worker that this is mixed into.
    start_weight_update: Callable[[], None]
    update_weights: Callable[[dict[str, Any]], None]
    finish_weight_update: Callable[[], None]

    def trinity_open_control(self, folder: str) -> str:
        """Open this worker's control socket in a folder of the front end's, once. Return its path."""
        path = Path(folder) / f"{self.rank}.sock"
        self.trinity_control = ControlServer(self.weight_transfer_engine.receiver, path)
        device = self.weight_transfer_engine.device
        _make_way(device)
        if device.type == "cpu":
            sampler = self.model_runner.sampler
            sampler.gather_logprobs = telling_kept(sampler.gather_logprobs)
        if self.vllm_config.lora_config is not None:
            self.weight_transfer_engine.serve_adapter(self.model_runner.lora_manager)
        return str(path)

    def trinity_transfer_load(self) -> None:
        """Do vLLM's three phases at once, because each call is a round trip during which generation stands still.

        Where versions are adapters, the worker's own part in the phases is left out: it would let go of all adapters,
        as those of weights that are no more.
        """
        engine = self.weight_transfer_engine
        if engine.serves_adapter:
            engine.finish_weight_update()
            return
        self.start_weight_update()
        self.update_weights({})
        self.finish_weight_update()

    def trinity_transfer_cancel(self) -> bool:
        """End a session without touching the model. Return whether an earlier load has already torn the weights."""
        self.weight_transfer_engine.receiver.cancel()
        self.weight_transfer_engine.reset_weight_update_target()
        self._weight_update_active = False
        return self.weight_transfer_engine.torn
