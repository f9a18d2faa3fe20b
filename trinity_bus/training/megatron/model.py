"""Building Megatron's ``GPTModel`` in a model's shape, filling it from safetensors, and naming its weights as there.

On a GPU with Transformer Engine installed its layer spec is used, which no test here has; else, and with adapters, the
local spec with :class:`SDPAttention`: Transformer Engine's linear layers do the norm before them inside, where an
adapter cannot see its result. Experts are this project's in both specs.
"""

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - the field's name for it

from trinity_bus.config import TrainerSettings
from trinity_bus.training import tensors
from trinity_bus.training.errors import ConversionError
from trinity_bus.training.families import ModelShape
from trinity_bus.training.layout import Layout
from trinity_bus.training.megatron import core
from trinity_bus.training.megatron.cpu_platform import on_cpu
from trinity_bus.training.megatron.layers import Experts, Norm, RotaryModel, SDPAttention
from trinity_bus.training.tensors import readable, weights

_EMBEDDING: Final = "embedding.word_embeddings.weight"
_OUTPUT: Final = "output_layer.weight"


def is_local(settings: TrainerSettings) -> bool:
    """Whether layers are of the local spec, with the project's attention, and not Transformer Engine's."""
    return settings.lora_rank > 0 or not have_transformer_engine()


def have_transformer_engine() -> bool:
    return not on_cpu() and importlib.util.find_spec("transformer_engine") is not None


def transformer_config(
    shape: ModelShape, layout: Layout, dtype: torch.dtype, settings: TrainerSettings, *, local: bool
) -> core.TransformerConfig:
    # Gradients are summed over ranks and micro-batches, never averaged: the loss carries its own normalisation.
    fused = not on_cpu()
    return core.TransformerConfig(
        num_layers=shape.layers,
        hidden_size=shape.hidden,
        num_attention_heads=shape.heads,
        num_query_groups=shape.groups,
        kv_channels=shape.head_dim,
        ffn_hidden_size=shape.intermediate,
        layernorm_epsilon=shape.norm_epsilon,
        normalization="RMSNorm",
        gated_linear_unit=True,
        activation_func=F.silu,
        add_bias_linear=False,
        add_qkv_bias=shape.qkv_bias,
        qk_layernorm=shape.qk_norm,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        num_moe_experts=shape.experts or None,
        moe_ffn_hidden_size=shape.intermediate if shape.experts else None,
        moe_router_topk=shape.experts_per_token or 2,  # Megatron's own default, of no use to a dense model
        # The weights of those that are chosen are a softmax over them alone, or over all.
        moe_router_pre_softmax=not shape.normalized_routing,
        moe_router_dtype="fp32",
        moe_enable_routing_replay=settings.router_replay,
        # What a policy learns is its reward; it was balanced before.
        moe_router_load_balancing_type="none",
        # The only one that lets ranks bring different numbers of tokens; a dense model has no use for it, but Megatron
        # refuses its default beside the lengths below.
        moe_token_dispatcher_type="alltoall",  # noqa: S106 - not that kind of token
        tensor_model_parallel_size=layout.tensor_parallel,
        sequence_parallel=layout.sequence_parallel,
        pipeline_model_parallel_size=layout.pipeline_parallel,
        context_parallel_size=layout.context_parallel,
        expert_model_parallel_size=layout.expert_parallel,
        # Micro-batches are packed, each to its own length.
        variable_seq_lengths=layout.pipeline_parallel > 1,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype is torch.bfloat16,
        calculate_per_token_loss=True,
        recompute_granularity="full" if settings.recompute else None,
        recompute_method="uniform" if settings.recompute else None,
        recompute_num_layers=1 if settings.recompute else None,
        # None; Megatron's own default is a spelling that it warns about.
        cuda_graph_scope=[],
        # Weights always come from a model folder.
        perform_initialization=False,
        use_cpu_initialization=on_cpu(),
        # Its backward pass computes the gate again: of five tensors as wide as the MLP three are kept.
        bias_activation_fusion=True,
        # These go through torch.compile or Transformer Engine's kernels.
        bias_dropout_fusion=fused,
        apply_rope_fusion=not local,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        persist_layer_norm=False,
    )


def _block_spec(
    config: core.TransformerConfig, layers: int, *, local: bool
) -> core.ModuleSpec | core.TransformerBlockSubmodules:
    if not local:
        spec = core.get_gpt_layer_with_transformer_engine_spec(
            num_experts=config.num_moe_experts, qk_layernorm=config.qk_layernorm
        )
    else:
        spec = core.get_gpt_layer_local_spec(
            num_experts=config.num_moe_experts, qk_layernorm=config.qk_layernorm, normalization=config.normalization
        )
        attention = spec.submodules.self_attention.submodules
        attention.core_attention = SDPAttention
        if config.qk_layernorm:
            attention.q_layernorm = attention.k_layernorm = Norm
        spec.submodules.input_layernorm = spec.submodules.pre_mlp_layernorm = Norm
    if config.num_moe_experts is not None:
        spec.submodules.mlp.submodules.experts = Experts
    else:
        # Megatron's layer does not hand it on, and its MLP warns when it must look it up itself.
        spec.submodules.mlp.params = {**(spec.submodules.mlp.params or {}), "ffn_hidden_size": config.ffn_hidden_size}
    return core.TransformerBlockSubmodules([spec] * layers, layer_norm=Norm) if local else spec


def _build_stage(config: core.TransformerConfig, shape: ModelShape, layout: Layout, *, local: bool) -> core.GPTModel:
    model = (RotaryModel if local else core.GPTModel)(
        config=config,
        transformer_layer_spec=_block_spec(config, shape.layers // layout.pipeline_parallel, local=local),
        vocab_size=shape.padded_vocabulary(layout.tensor_parallel),
        max_sequence_length=shape.max_positions,
        pre_process=layout.pipeline_rank == 0,
        post_process=layout.pipeline_rank == layout.pipeline_parallel - 1,
        parallel_output=True,
        share_embeddings_and_output_weights=shape.tied,
        position_embedding_type="rope",
        rotary_base=shape.rope_theta,
        rope_scaling=shape.llama3_rope_factor is not None,
        rope_scaling_factor=shape.llama3_rope_factor or 1.0,
    )
    for name, parameter in model.named_parameters():
        # Megatron sets these while it initializes weights, which it was told not to. Without them the gradient norm
        # over tensor-parallel ranks would be wrong, silently.
        axis = tensors.split_axis(name)
        if axis is not None and not hasattr(parameter, "tensor_model_parallel"):
            core.set_tensor_model_parallel_attributes(parameter, is_parallel=True, dim=axis, stride=1)
        core.set_defaults_if_not_set_tensor_model_parallel_attributes(parameter)
    if model.post_process:
        # Logits are computed with the loss, of the tokens that it needs and a part at a time: see ``logprobs``.
        model.output_layer.forward = lambda hidden, **_: (hidden, None)
    return model.to(layout.device)


class StagedModel:
    """This rank's stage of a model, with memory but no weights yet, on the layout's device."""

    def __init__(self, shape: ModelShape, layout: Layout, dtype: torch.dtype, settings: TrainerSettings) -> None:
        local = is_local(settings)
        config = transformer_config(shape, layout, dtype, settings, local=local)
        self._shape, self._layout, self._dtype = shape, layout, dtype
        self.stage = _build_stage(config, shape, layout, local=local)
        self.layers = shape.layers // layout.pipeline_parallel
        experts = shape.experts // layout.expert_parallel
        self._own_experts = range(layout.expert_rank * experts, (layout.expert_rank + 1) * experts)

    @property
    def output_weight(self) -> torch.Tensor:
        """This rank's part of the output layer, where it has the last stage, [vocabulary, hidden]."""
        weight = self.stage.shared_embedding_or_output_weight() if self._shape.tied else None
        return self.stage.output_layer.weight if weight is None else weight

    def load(self, folder: Path) -> None:
        """ConversionError where the folder does not hold this model and nothing else (see ``tensors``)."""
        read = weights(folder, self._shape)
        with torch.no_grad(), readable(folder):
            for parameter, shard in self.shards_of(read, folder):
                parameter.copy_(shard)

    def shards_of(
        self, read: Callable[[str], torch.Tensor], folder: Path
    ) -> Iterator[tuple[torch.nn.Parameter, torch.Tensor]]:
        """Return this rank's parameters, each with its shard of what is read whole under its Hugging Face names."""
        shape, layout = self._shape, self._layout
        for name, parameter in self._named_parameters():
            shards = []
            for one in (stacked := tensors.expert_names(name, self._own_experts)) or [name]:
                # A tied output layer is the embedding.
                sources = tensors.hf_names(_EMBEDDING if one == _OUTPUT and shape.tied else one)
                whole = tensors.merge(one, [read(part) for part in sources], shape, layout.tensor_parallel)
                shard = tensors.shard(one, whole, layout.tensor_parallel, layout.tensor_rank)
                expected = parameter.shape[1:] if stacked else parameter.shape
                if shard.shape != expected:
                    raise ConversionError(
                        f"{folder}: {sources} make {one} {tuple(shard.shape)}; config.json asks for {tuple(expected)}"
                    )
                shards.append(shard)
            yield parameter, torch.stack(shards) if stacked else shards[0]

    def tensors(
        self, of: Callable[[torch.nn.Parameter], torch.Tensor] = torch.Tensor.detach, dtype: torch.dtype | None = None
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Return ``of`` each parameter under its Hugging Face names, whole, in the model's order, on its device.

        Where the model is on several ranks, this is a collective: all of them must iterate to the end, and each gets
        all.
        """
        group = self._layout.tensor_group
        for name, shard in self._shards(of, dtype or self._dtype):
            tensor = shard
            if group is not None and tensors.split_axis(name) is not None:
                shards = [torch.empty_like(tensor) for _ in range(self._layout.tensor_parallel)]
                dist.all_gather(shards, tensor.contiguous(), group=group)
                tensor = tensors.unshard(name, shards)
            for hf_name, part in zip(tensors.hf_names(name), tensors.split(name, tensor, self._shape), strict=True):
                yield hf_name, part.contiguous()

    def _named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        # By their names in the whole model; its experts of a layer are stacks
        first_layer = self._layout.pipeline_rank * self.layers
        for name, parameter in self.stage.named_parameters():
            if ".adapter." not in name:  # see ``lora``
                yield tensors.global_name(name, first_layer), parameter

    def _shards(
        self, of: Callable[[torch.nn.Parameter], torch.Tensor], dtype: torch.dtype
    ) -> Iterator[tuple[str, torch.Tensor]]:
        # Where layers or experts are distributed this is a collective: who holds a parameter sends it to the others.
        layout, own, own_experts = self._layout, dict(self._named_parameters()), self._own_experts
        stages, experts = layout.pipeline_group, layout.expert_group
        for name, stage, size in self._everything(own):
            mine = None if (parameter := own.get(name)) is None else of(parameter)
            names = tensors.expert_names(name, range(self._shape.experts))
            for expert, one in enumerate(names or [name]):
                is_here = not names or expert in own_experts
                if mine is not None and is_here:
                    tensor = (mine[expert - own_experts.start] if names else mine).contiguous()
                else:
                    tensor = torch.empty(size[1:] if names else size, dtype=dtype, device=layout.device)
                if stages is not None and is_here:
                    dist.broadcast(tensor, src=layout.rank_of_stage(stage), group=stages)
                if experts is not None and names:
                    dist.broadcast(tensor, src=layout.rank_of_experts(expert // len(own_experts)), group=experts)
                yield one, tensor

    def _everything(self, own: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, int, torch.Size]]:
        # In the model's order: the name, the stage that holds it, its size on a rank
        shape, layout = self._shape, self._layout
        last_stage, ranks = layout.pipeline_parallel - 1, layout.tensor_parallel
        first_layer = f"decoder.layers.{layout.pipeline_rank * self.layers}."
        layer = [(name.removeprefix(first_layer), t.shape) for name, t in own.items() if name.startswith(first_layer)]
        vocabulary = torch.Size((shape.padded_vocabulary(ranks) // ranks, shape.hidden))
        yield _EMBEDDING, 0, vocabulary
        for number in range(shape.layers):
            yield from ((f"decoder.layers.{number}.{name}", number // self.layers, size) for name, size in layer)
        yield "decoder.final_layernorm.weight", last_stage, torch.Size((shape.hidden,))
        if not shape.tied:
            yield _OUTPUT, last_stage, vocabulary
