"""Training with Megatron-core: one rank of any layout; see ``parallel``, and ``multi_rank_engine`` for several.

Passes over the model, forward alone, or forward and backward, are made in packed micro-batches.

The model is wrapped for data parallelism: gradients are kept in float32 and summed over the ranks that hold the same
shard. On one rank the wrapper is there too; a step is the same everywhere.

Ranks that share experts want as many micro-batches each, since tokens meet there. Larger ones are divided then, and
where there is nothing left to divide, one is run again that weighs nothing.

Where samples are split over ranks, each computes its part of the log-probabilities. They are gathered before the loss,
which all of these ranks compute alike, and each takes the gradient of its own part.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.distributed as dist

from schemas.experience import Float32
from trinity_bus.config import TrainerSettings
from trinity_bus.config.mesh import computed_dtype
from trinity_bus.training.engines.adapters import TARGETS
from trinity_bus.training.engines.rank_engine import RankEngine
from trinity_bus.training.kept_rows import KeptRows
from trinity_bus.training.layout import Layout
from trinity_bus.training.megatron import core, parallel
from trinity_bus.training.megatron.cpu_platform import on_cpu
from trinity_bus.training.megatron.layers import SharedSeqParams
from trinity_bus.training.megatron.logprobs import vocab_parallel_logprobs
from trinity_bus.training.megatron.lora import Adapters, dithered
from trinity_bus.training.megatron.model import StagedModel, is_local
from trinity_bus.training.megatron.optimizer import AdamW
from trinity_bus.training.steps import packing
from trinity_bus.training.steps.packing import PackedArrays, TrainSample


class MegatronEngine(RankEngine):
    """``world`` says which rank it is, by default the environment does: it joins the process groups where need be."""

    NAME: ClassVar[str] = "megatron"

    def __init__(self, settings: TrainerSettings, world: parallel.World | None = None) -> None:
        super().__init__(settings, layout=parallel.initialize(settings, world))

    @staticmethod
    def dtype_of(settings: TrainerSettings) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, computed_dtype(settings.dtype, on_cpu=on_cpu()))
        return dtype

    def _build(self) -> None:
        settings, shape, layout = self.settings, self.shape, self.layout
        self.model = StagedModel(shape, layout, self.dtype, settings)
        self._load_weights(self.source)
        self._adapters = Adapters(self.model.stage, shape, layout, settings) if settings.lora_rank else None
        # What checkpoints have of that which is trained
        self.trained = self._adapters or self.model
        bf16 = self.dtype is torch.bfloat16
        self.network = _wrapped(
            self.model.stage, distributed_optimizer=settings.distributed_optimizer or bf16, bf16=bf16
        )
        self._options = {"fp32_output": False} if bf16 else {}
        # Where the project's own attention lays them out again
        self.shares_prompts = is_local(settings) and layout.context_parallel == 1
        self._routes = _Routers(self.network, layout) if settings.router_replay else None
        self._schedule = core.get_forward_backward_func()
        self._optimizer = AdamW(self.network, settings, self.dtype)

    def _load_weights(self, folder: Path) -> None:
        self.model.load(folder)

    def hf_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        if self._adapters is None:
            return self.model.tensors()
        # What adapters add is added. The rest, with the large embeddings, is as it was, so rounding it is no work.
        merged = self.model.tensors(self._adapters.merged, torch.float32)
        return (
            (name, dithered(whole, self.dtype) if name.split(".")[-2] in TARGETS else whole.to(self.dtype))
            for name, whole in merged
        )

    def adapter_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(()) if self._adapters is None else self._adapters.tensors()

    def _parameters(self) -> Iterable[torch.nn.Parameter]:
        return (parameter for parameter in self.model.stage.parameters() if parameter.requires_grad)

    def output_states(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return what the output layer is applied to, [tokens, hidden], from what the last stage has left."""
        states, tensors = hidden[0].to(self.model.output_weight.dtype), self.layout.tensor_group
        if self.layout.sequence_parallel:
            return core.mappings.gather_from_sequence_parallel_region(states, group=tensors)
        return states if tensors is None else core.mappings.copy_to_tensor_model_parallel_region(states, group=tensors)

    def token_logprobs(self, hidden: torch.Tensor, arrays: PackedArrays) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probability of each position's target, and the entropy there, both [tokens]; 0 outside responses.

        ``hidden``: [1, this rank's tokens, hidden] as the last layer has left them; or a sequence-parallel part.
        """
        mine, weight, states = self._own_tokens(arrays), self.model.output_weight, self.output_states(hidden)
        wanted = np.flatnonzero(arrays.responses[mine])
        places = np.arange(len(arrays.targets))[mine][wanted]
        of = wanted if arrays.shared is None else arrays.shared.places[wanted]
        values = vocab_parallel_logprobs(
            # Gradients of a row that several want are summed by what is the same in every run.
            torch.nn.functional.embedding(self._tensor(of), states),
            weight,
            self._tensor(arrays.targets[places]),
            vocabulary=self.shape.vocabulary,
            temperatures=None if (arrays.temperatures == 1).all() else self._tensor(arrays.temperatures[places]),
            kept=None if arrays.kept is None else KeptRows(arrays.kept.of(places), self.layout.device),
            group=self.layout.tensor_group,
            # Where ranks sum gradients while others are computed they have to see each.
            sums=None if weight.dtype is not torch.float32 else getattr(weight, "main_grad", None),
        )
        rows, tokens = self._tensor(wanted), len(arrays.targets[mine])
        logprobs, entropy = (value.new_zeros(tokens).index_copy(0, rows, value) for value in values)
        group = self.layout.context_group
        if group is None:
            return logprobs, entropy
        # The loss is the same on all of these ranks: of its gradient each takes its own part, nothing is summed.
        both = core.mappings.gather_from_sequence_parallel_region(
            torch.stack([logprobs, entropy], 1), tensor_parallel_output_grad=False, group=group
        )
        ranks = range(self.layout.context_parallel)
        order = np.concatenate([packing.context_part(arrays.bounds, rank, len(ranks)) for rank in ranks])
        whole = both[self._tensor(np.argsort(order))]
        return whole[:, 0], whole[:, 1]

    def _own_tokens(self, arrays: PackedArrays) -> slice | packing.Int64:
        if self.layout.context_parallel == 1:
            return slice(None)
        return packing.context_part(arrays.bounds, self.layout.context_rank, self.layout.context_parallel)

    def logprobs(self, samples: Sequence[TrainSample]) -> list[Float32]:
        # On every stage

        def collect(
            indices: Sequence[int], arrays: PackedArrays, hidden: torch.Tensor, *, non_loss_data: bool
        ) -> tuple[Sequence[int], PackedArrays, torch.Tensor]:
            del non_loss_data  # Megatron says so to functions that may also be asked for a loss
            return indices, arrays, self.token_logprobs(hidden, arrays)[0]

        with torch.no_grad():
            outputs = self.run(samples, collect, token_weight=0.0, forward_only=True)
        found = packing.gathered(outputs, samples)
        if (stages := self.layout.pipeline_group) is not None:
            # Plain arrays of known lengths in one collective: what a stage does not have is zero.
            sizes = [len(sample.rollout_logprobs) for sample in samples]
            flat = np.concatenate([found.get(i, np.zeros(n, np.float32)) for i, n in enumerate(sizes)])
            summed = torch.from_numpy(flat).to(self.layout.device)
            dist.all_reduce(summed, group=stages)
            return np.split(summed.cpu().numpy(), np.cumsum(sizes)[:-1])
        return [found[i] for i in range(len(samples))]

    def run(
        self,
        samples: Sequence[TrainSample],
        function: Callable[..., Any],
        *,
        token_weight: float,
        forward_only: bool,
    ) -> list[Any]:
        """Run this rank's samples, in micro-batches.

        Args:
            samples: At least one; the same on the ranks that hold shards or stages of one model.
            function: Called with ``(indices, arrays, hidden states)`` of each micro-batch. Where gradients are wanted
                it returns Megatron's triple of loss, token count and anything; else, with ``non_loss_data=True``,
                anything. What it returns is returned on the last stage of a pipeline, and nothing on others.
            token_weight: See ``packing.pack``.
            forward_only: Else gradients are added to the model's, and summed over ranks at the end.
        """
        micro_batches = self._micro_batches(samples)
        longest = max(sum(len(samples[i].tokens) for i in indices) for indices, _ in micro_batches)

        def step(iterator: Iterator[tuple[list[int], float]], network: torch.nn.Module) -> tuple[torch.Tensor, Any]:
            self._stop_if_asked()
            indices, weight = next(iterator)
            arrays = packing.pack(
                [samples[i] for i in indices],
                token_weight=weight * token_weight,
                temperature=self.settings.temperature,
                multiple=self.layout.tokens_multiple,
                share=self.shares_prompts,
            )
            bounds, shared = self._tensor(arrays.bounds), arrays.shared
            packed = SharedSeqParams(
                qkv_format="thd",
                cu_seqlens_q=bounds,
                cu_seqlens_kv=bounds,
                max_seqlen_q=arrays.longest,
                max_seqlen_kv=arrays.longest,
                shared=None if shared is None else (self._tensor(shared.computed), self._tensor(shared.places)),
            )
            mine = self._own_tokens(arrays) if shared is None else shared.computed
            if self._routes is not None:
                chosen = None if arrays.routes is None else arrays.routes[mine]
                self._routes.choose(
                    None if chosen is None else self._tensor(chosen).unflatten(1, (self.shape.layers, -1))
                )
            tokens, positions = self._tensor(arrays.tokens[mine])[None], self._tensor(arrays.positions[mine])[None]
            # Float16Module would make float32 of them; whoever computes with them does so in chunks.
            hidden = network(tokens, positions, None, packed_seq_params=packed, **self._options)
            return hidden, partial(function, indices, arrays)

        result: list[Any] = self._schedule(
            forward_step_func=step,
            data_iterator=iter(micro_batches),
            model=self.network,
            num_microbatches=len(micro_batches),
            seq_length=max(self._budget.tokens, longest),
            micro_batch_size=1,
            forward_only=forward_only,
            collect_non_loss_data=forward_only,
        )
        return result

    def _micro_batches(self, samples: Sequence[TrainSample]) -> list[tuple[list[int], float]]:
        # Which samples go together, and what their tokens weigh: 1, or 0 where a micro-batch is run again.
        layout, wanted = self.layout, 0

        def count(fewest: int) -> int:
            nonlocal wanted
            wanted = fewest
            if layout.expert_parallel > 1:
                # All who share experts with some that this rank shares experts with.
                most = torch.tensor(wanted, device=layout.device)
                dist.all_reduce(most, op=dist.ReduceOp.MAX, group=layout.copies_group)
                wanted = int(most)
            return wanted

        micro_batches = packing.micro_batches(samples, self._budget.tokens, count, share=self.shares_prompts)
        again = [(micro_batches[-1], 0.0)] * (wanted - len(micro_batches))
        return [(indices, 1.0) for indices in micro_batches] + again

    def leave(self) -> None:
        super().leave()
        # For good and for all engines of this process
        parallel.shut_down()

    def _accumulate(self, samples: Sequence[TrainSample], token_weight: float) -> tuple[torch.Tensor, int]:
        def loss(indices: Sequence[int], arrays: PackedArrays, hidden: torch.Tensor) -> Any:
            mine = [samples[i] for i in indices]
            value, metrics = self._loss(mine, arrays, *self.token_logprobs(hidden, arrays))
            # Three values: Megatron then neither scales the loss nor divides by the second, a token count.
            return value, torch.ones((), dtype=torch.int, device=value.device), metrics

        self.network.zero_grad_buffer()
        self._optimizer.zero_grad()
        outputs = self.run(samples, loss, token_weight=token_weight, forward_only=False)
        # On a stage that is not the last there are none, and the others' arrive below.
        sums = (
            torch.stack(outputs).sum(0)
            if outputs
            else torch.zeros(len(self._objective.metrics), device=self.layout.device)
        )
        for group in (self.layout.data_group, self.layout.pipeline_group):
            if group is not None:
                dist.all_reduce(sums, group=group)
        return sums, len(outputs)

    def _update_weights(self, learning_rate: float) -> float:
        return self._optimizer.step(learning_rate)

    def _load_adapters(self, state: Mapping[str, torch.Tensor], folder: Path) -> None:
        with torch.no_grad():
            for weight, value in self.trained.shards_of(state.__getitem__, folder):
                weight.copy_(value)

    def _optimizer_state(self) -> Iterator[tuple[str, torch.Tensor]]:
        optimizer = self._optimizer
        yield "updates", torch.tensor(optimizer.updates)
        for kind in optimizer.kinds:
            for name, tensor in self.trained.tensors(partial(optimizer.state_of, kind=kind), torch.float32):
                yield f"{kind}.{name}", tensor

    def _load_optimizer_state(self, state: Mapping[str, torch.Tensor], folder: Path) -> None:
        self._optimizer.updates = int(state["updates"])
        for kind in self._optimizer.kinds:
            for weight, value in self.trained.shards_of(partial(_read, state, kind), folder):
                self._optimizer.load_state_of(weight, kind, value)


class _Routers:
    # Those of a model, which are told to choose the experts that were chosen before, with Megatron's own replay.
    # Megatron keeps all routers of a process in one list; here each is asked by itself, so that a process may hold
    # several models. A choice is good for the forward pass that comes next: activations are not computed again with it.

    def __init__(self, network: torch.nn.Module, layout: Layout) -> None:
        self._layout = layout
        self._routers: list[tuple[int, core.RouterReplay]] = [
            (m.layer_number - 1, m.router_replay) for m in network.modules() if isinstance(m, core.TopKRouter)
        ]

    def choose(self, routes: torch.Tensor | None) -> None:
        """``routes``: [this rank's tokens, layers of the model, k]; None: what they find best."""
        if routes is not None and self._layout.sequence_parallel:
            routes = routes.chunk(self._layout.tensor_parallel)[self._layout.tensor_rank]
        for layer, router in self._routers:
            router.clear_indices()
            if routes is None:
                router.clear_router_replay_action()
            else:
                router.set_target_indices(routes[:, layer].long())
                router.set_router_replay_action(core.RouterReplayAction.REPLAY_FORWARD)


def _wrapped(stage: core.GPTModel, *, distributed_optimizer: bool, bf16: bool) -> core.DistributedDataParallel:
    config = stage.config
    network = core.DistributedDataParallel(
        config,
        core.DistributedDataParallelConfig(
            grad_reduce_in_fp32=True,
            use_distributed_optimizer=distributed_optimizer,
            overlap_grad_reduce=bf16,
            # Weights are read between steps, by exports and checkpoints: they must be whole by then.
            overlap_param_gather=False,
        ),
        core.Float16Module(config, stage) if bf16 else stage,
    )
    # The token count that Megatron would divide by is left out: the loss carries its own normalisation.
    config.finalize_model_grads_func = lambda models, _tokens=None, **kwargs: core.finalize_model_grads(
        models, None, **kwargs
    )
    config.no_sync_func = network.no_sync
    return network


def _read(state: Mapping[str, torch.Tensor], kind: str, name: str) -> torch.Tensor:
    return state[f"{kind}.{name}"]
