"""Loading a version into a model of vLLM: in place, or beside it and then exchanged.

vLLM makes of a checkpoint's tensors what its kernels compute with: it joins them, splits them over ranks, and on CPUs
packs them for oneDNN. In place, generation stands still for all of that. A *shadow* is the same tree of modules with
tensors of its own: a version is loaded into it while the model generates, and what is left for the pause is to exchange
the tensors, and whatever else loading has made, module by module: references, no bytes.

::

    SHADOW --load: beside generation--> LOADED --exchange: generation paused--> SHADOW (holds the former version)
               |                          |
               +--failed: give it up      +--load: another version (the one before was never exchanged)

A shadow costs one more copy of the weights; what loading does not touch is shared. Exchanging gives the model's
parameters other addresses, so it is not for models that are compiled or captured as graphs. Failures: ``load`` in place
leaves a mix of two versions when it fails. A shadow that has failed is a mix, too, but nobody computes with it.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import LAYERWISE_INFO, get_layerwise_info
from vllm.model_executor.model_loader.reload.meta import to_meta_tensor
from vllm.model_executor.model_loader.reload.types import LayerReloadingInfo
from vllm.platforms import current_platform

from trinity_bus.weights.errors import WeightTransferError

# It warns of layers without weights at each reload, of position embeddings among others; ``load`` checks itself.
logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel(logging.ERROR)

_STRUCTURE = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")


def load(model: torch.nn.Module, model_config: Any, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Load a version, by its names in a checkpoint, into a model that was loaded before, or into its shadow's."""
    wanted = {name for name, _ in model.named_parameters()} - _derived(model)
    with torch.no_grad(), _experts_at_once(model):
        initialize_layerwise_reload(model)
        loaded: set[str] | None = model.load_weights(tensors)
        finalize_layerwise_reload(model, model_config)
        _refresh_tied(model)
    # A layer that gets nothing keeps its old weights, and vLLM only warns of it.
    if loaded is not None and (missing := wanted - set(loaded)):
        raise WeightTransferError(f"the trainer sent nothing for {sorted(missing)[:5]}")


@contextmanager
def _experts_at_once(model: torch.nn.Module) -> Iterator[None]:
    # Each stack of a layer's experts is loaded by one call of its loader. vLLM calls it for each expert's tensors, and
    # twice: to count, and in earnest. Of some ten thousand tensors that is seconds, most of them its own bookkeeping,
    # and generation stands still for them.
    layers = [layer for layer in model.modules() if isinstance(layer, RoutedExperts)]
    loaders = {}
    for layer in layers:
        if current_platform.is_cpu() and isinstance(layer.quant_method, torch.nn.Module):
            # vLLM packs experts for the kernel of CPUs where it makes that, and it does so once. Those of quantized
            # experts are made each time; what makes them is no module, so the model that serves has the same.
            layer.quant_method.moe_kernel = None
        layer.load_weights = MethodType(_load_experts, layer)
        for stack in get_layerwise_info(layer).restore_metadata[0].values():
            if stack.dim() == 3:
                loaders[stack], stack.weight_loader = stack.weight_loader, _of_all(layer)
    try:
        yield
    finally:
        for layer in layers:
            del layer.load_weights
        for stack, loader in loaders.items():
            stack.weight_loader = loader


def _of_all(layer: RoutedExperts) -> Callable[..., None]:
    def load_all(param: torch.nn.Parameter, calls: list[dict[str, Any]]) -> None:
        if param.is_meta:
            # vLLM counts what is copied, and all of it will be.
            param.data.copy_(param.data)
            return
        for call in calls:
            layer.weight_loader(param=param, **call)

    return load_all


def _load_experts(layer: RoutedExperts, tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[str]:
    # Yields the parameters that were loaded.
    own = f"{layer.layer_name.rpartition('.')[2]}."
    places = defaultdict(list)
    for stack, part, expert, shard in layer.get_expert_mapping():
        places[part.removeprefix(own)].append((stack.removeprefix(own), expert, shard))
    missing, calls = set(places), defaultdict(list)
    for name, tensor in tensors:
        part, dot, kind = name.rpartition(".")
        missing.discard(part + dot)
        for stack, expert, shard in places[part + dot]:
            calls[stack + kind].append({
                "loaded_weight": tensor, "weight_name": f"{layer.layer_name}.{stack}{kind}", "shard_id": shard,
                "expert_id": expert, "return_success": True,
            })  # fmt: skip
    if missing:
        raise WeightTransferError(f"the trainer sent nothing for {sorted(missing)[:5]} of {layer.layer_name}")
    for name, of_stack in calls.items():
        parameter = getattr(layer, name)
        parameter.weight_loader(parameter, of_stack)
        yield name


def _derived(model: torch.nn.Module) -> set[str]:
    # The parameters that vLLM has made itself while it loaded a layer: the scales of one that it quantizes.
    names: set[str] = set()
    for prefix, layer in model.named_modules():
        noted, _ = get_layerwise_info(layer).restore_metadata
        if noted:
            names |= {f"{prefix}.{name}" for name, _ in layer.named_parameters(recurse=False) if name not in noted}
    return names


def elements(model: torch.nn.Module) -> int:
    """Return how many elements a model of vLLM has in its checkpoint, as far as this rank holds them.

    What was packed for a kernel has no elements of its own any more; vLLM has noted what it was made of.
    """
    found = 0
    for layer in model.modules():
        noted, _ = get_layerwise_info(layer).restore_metadata
        now = dict(layer.named_parameters(recurse=False))
        found += sum(max(known[name].numel() for known in (noted, now) if name in known) for name in {*noted, *now})
    return found


def _refresh_tied(model: torch.nn.Module) -> None:
    # Layers whose weight is another layer's, such as an output layer tied to the embeddings: a reload passes them by,
    # because no weight has their name. They see the new values, but not what vLLM derived of the old ones: on a CPU, a
    # copy packed for oneDNN, with which it would go on computing.
    owners: dict[int, torch.nn.Module] = {}
    for layer in model.modules():
        weight = getattr(layer, "weight", None)
        if not isinstance(weight, torch.Tensor) or weight.numel() == 0:
            continue
        if owners.setdefault(weight.data_ptr(), layer) is not layer and hasattr(layer, "quant_method"):
            layer.quant_method.process_weights_after_loading(layer)


class Shadow:
    """The modules of a model once more, which computes eagerly and is loaded."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._twins: dict[torch.nn.Module, torch.nn.Module] = {}
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._tensors: dict[int, torch.Tensor] = {}
        self._model = self._twin(model)
        # What was shared while it was made, is.
        self._storages.clear()
        self._tensors.clear()
        # Attributes that loading has set since the last exchange, by the module of the model
        self._changed: dict[torch.nn.Module, set[str]] = {live: set() for live in self._twins}

    def load(self, model_config: Any, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Load a version beside the model. After a failure the shadow is of no use."""
        before = {live: dict(vars(twin)) for live, twin in self._twins.items()}
        load(self._model, model_config, tensors)
        for live, twin in self._twins.items():
            known = before[live]
            self._changed[live].update(
                name for name, value in vars(twin).items() if name not in _STRUCTURE and known.get(name) is not value
            )

    def exchange(self) -> None:
        """Give the model what was loaded, and keep what it had. The model must not compute meanwhile."""
        for live, twin in self._twins.items():
            for name in ("_parameters", "_buffers", *self._changed[live]):
                ours, theirs = vars(live), vars(twin)
                had, had_one = ours.get(name), name in ours
                ours[name] = theirs[name]
                if had_one:
                    theirs[name] = had
                else:
                    del theirs[name]
            self._changed[live].clear()

    def _twin(self, live: torch.nn.Module) -> torch.nn.Module:
        # Modules that appear twice do so here.
        known = self._twins.get(live)
        if known is not None:
            return known
        twin = live.__class__.__new__(live.__class__)
        self._twins[live] = twin
        values = vars(twin)
        values.update(vars(live))
        values["_parameters"] = {name: self._copy(tensor) for name, tensor in vars(live)["_parameters"].items()}
        values["_buffers"] = {name: self._copy(tensor) for name, tensor in vars(live)["_buffers"].items()}
        values["_non_persistent_buffers_set"] = set(vars(live)["_non_persistent_buffers_set"])
        values["_modules"] = {
            name: None if child is None else self._twin(child) for name, child in vars(live)["_modules"].items()
        }
        recorded = get_layerwise_info(live)
        # vLLM ties what is recorded to the layer that it is first restored in.
        parameters, buffers = (
            {name: to_meta_tensor(tensor) for name, tensor in kind.items()} for kind in recorded.restore_metadata
        )
        LAYERWISE_INFO[twin] = LayerReloadingInfo(
            restore_metadata=(parameters, buffers), restore_device=recorded.restore_device
        )
        return twin

    def _copy(self, tensor: torch.Tensor | None) -> torch.Tensor | None:
        # Tensors that share memory do so among the copies.
        if tensor is None:
            return None
        if id(tensor) not in self._tensors:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self._storages:
                self._storages[storage.data_ptr()] = storage.clone()
            made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            made.set_(self._storages[storage.data_ptr()], tensor.storage_offset(), tensor.size(), tensor.stride())
            made.__class__ = tensor.__class__
            made.__dict__.update(tensor.__dict__)
            self._tensors[id(tensor)] = made
        return self._tensors[id(tensor)]
