"""Training with transformers' own model and torch's own optimizer, in one process: the numeric reference.

Nothing here is clever: padded batches, ``log_softmax`` and ``gather`` of the responses in chunks of rows, AdamW, all in
float32. What Megatron's engine computes in any layout is compared with this.
"""

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

from schemas.experience import Float32
from trinity_bus.config import TrainerSettings
from trinity_bus.config.values import unknown_options
from trinity_bus.runtime.device import uses_gpu
from trinity_bus.training import tensors
from trinity_bus.training.engines import adapters
from trinity_bus.training.engines.critic import load_state_of, padded, state_of
from trinity_bus.training.engines.rank_engine import RankEngine
from trinity_bus.training.errors import CheckpointError, ConversionError, ParallelError, TrainingError
from trinity_bus.training.kept_rows import KeptRows
from trinity_bus.training.layout import Layout
from trinity_bus.training.steps import packing
from trinity_bus.training.steps.packing import PackedArrays, TrainSample
from trinity_bus.training.tensors import readable, weights

_ADAPTER: Final = ("lora_A", "lora_B")


class TorchEngine(RankEngine):
    NAME: ClassVar[str] = "torch"

    def __init__(self, settings: TrainerSettings) -> None:
        if settings.ranks > 1:
            raise ParallelError(f"trainer.engine=torch trains on one rank, not on {settings.ranks}")
        device = torch.device("cuda" if uses_gpu() else "cpu")
        super().__init__(settings, layout=Layout.alone(device))

    @staticmethod
    def dtype_of(settings: TrainerSettings) -> torch.dtype:
        if settings.dtype == "bfloat16":
            raise TrainingError("trainer.engine=torch trains in float32, not in bfloat16")
        return torch.float32

    def _build(self) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM

        settings = self.settings
        try:
            config = AutoConfig.from_pretrained(
                self.source, local_files_only=True, trust_remote_code=False, attention_dropout=0.0
            )
        # Its own errors have no common base; what is wrong is in the file.
        except Exception as error:
            raise ConversionError(f"{self.source}: transformers cannot read its config.json: {error}") from error
        self._network: Any = AutoModelForCausalLM.from_config(config, dtype=self.dtype, attn_implementation="sdpa")
        self._load_weights(self.source)
        # Linear layers beside whose weights something is trained, by name
        self._adapted: dict[str, Any] = {}
        if settings.lora_rank:
            self._adapt()
        self._network.to(self.layout.device)
        if settings.recompute:
            self._network.gradient_checkpointing_enable()
            if settings.lora_rank:
                self._network.enable_input_require_grads()
        options: dict[str, Any] = dict(settings.optimizer_options)
        if wrong := unknown_options(options, inspect.signature(torch.optim.AdamW).parameters):
            raise TrainingError(f"trainer.optimizer_options: {wrong}, as an argument of torch's AdamW")
        self._optimizer = torch.optim.AdamW(
            [
                {"params": [p for p in self._parameters() if p.dim() > 1], "weight_decay": settings.weight_decay},
                {"params": [p for p in self._parameters() if p.dim() == 1], "weight_decay": 0.0},
            ],
            lr=settings.learning_rate,
            betas=(settings.adam_beta1, settings.adam_beta2),
            **options,
        )

    def _adapt(self) -> None:
        rank, scale = self.settings.lora_rank, self._scale
        self._network.requires_grad_(False)
        self._adapted = {name: m for name, m in self._network.named_modules() if name.endswith(adapters.TARGETS)}
        for name, linear in self._adapted.items():
            linear.lora_A = torch.nn.Parameter(adapters.initial_a(name, linear.in_features, self.settings))
            linear.lora_B = torch.nn.Parameter(torch.zeros(linear.out_features, rank))
            linear.register_forward_hook(
                lambda module, inputs, output: output + scale * (inputs[0] @ module.lora_A.T @ module.lora_B.T)
            )

    @property
    def _scale(self) -> float:
        return self.settings.lora_alpha / self.settings.lora_rank

    def logprobs(self, samples: Sequence[TrainSample]) -> list[Float32]:
        with torch.no_grad():
            found = packing.gathered((one[:3] for one in self._passes(samples, 0.0)), samples)
        return [found[i] for i in range(len(samples))]

    def hf_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, weight in self._hf_views():
            linear = self._adapted.get(name.removesuffix(".weight"))
            yield name, weight if linear is None else weight + self._scale * (linear.lora_B @ linear.lora_A).detach()

    def adapter_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        return ((name, parameter.detach()) for name, parameter in self._adapters())

    def _adapters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        for name, linear in self._adapted.items():
            yield from zip(adapters.peft_names(name), (linear.lora_A, linear.lora_B), strict=True)

    def _hf_views(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, parameter in self._network.named_parameters():  # what is tied is named once
            if not name.endswith(_ADAPTER):
                yield from tensors.of_transformers(name, parameter.detach())

    def _passes(
        self, samples: Sequence[TrainSample], token_weight: float
    ) -> Iterator[tuple[list[int], PackedArrays, torch.Tensor, torch.Tensor]]:
        # Which samples, their arrays; the log-probability of each position's target and the entropy there, [tokens].
        for indices in packing.micro_batches(samples, self._budget.tokens):
            self._stop_if_asked()
            arrays = packing.pack(
                [samples[i] for i in indices], token_weight=token_weight, temperature=self.settings.temperature
            )
            tokens, real = padded(arrays, self.layout.device)
            hidden = self._network.get_decoder()(input_ids=tokens, use_cache=False).last_hidden_state[real]
            yield indices, arrays, *self._token_logprobs(hidden, arrays)

    def _token_logprobs(self, hidden: torch.Tensor, arrays: PackedArrays) -> tuple[torch.Tensor, torch.Tensor]:
        # [tokens], 0 outside responses. Rows of logits are computed in chunks, and again in the backward pass where
        # there are several.
        head = self._network.get_output_embeddings()
        places = np.flatnonzero(arrays.responses)
        rows, size = self._tensor(places), max(1, packing.LOGITS_AT_ONCE // head.out_features)
        kept = None if arrays.kept is None else KeptRows(arrays.kept.of(places), self.layout.device)

        def of(chunk: slice) -> tuple[torch.Tensor, torch.Tensor]:
            logits = head(hidden[rows[chunk]]) / self._tensor(arrays.temperatures)[rows[chunk], None]
            outside = None if kept is None else kept.outside(chunk, 0, head.out_features)
            logp = (logits if outside is None else logits.masked_fill(outside, -torch.inf)).log_softmax(-1)
            logprobs = logp.gather(1, self._tensor(arrays.targets)[rows[chunk], None])[:, 0]
            surprise = logp if outside is None else logp.masked_fill(outside, 0.0)
            return logprobs, -(logp.exp() * surprise).sum(1)

        chunks = [slice(start, start + size) for start in range(0, max(1, len(rows)), size)]
        of_each = [checkpoint(of, chunk, use_reentrant=False) if len(chunks) > 1 else of(chunk) for chunk in chunks]
        values = (torch.cat(column) for column in zip(*of_each, strict=True))
        logprobs, entropies = (value.new_zeros(len(hidden)).index_copy(0, rows, value) for value in values)
        return logprobs, entropies

    def _accumulate(self, samples: Sequence[TrainSample], token_weight: float) -> tuple[torch.Tensor, int]:
        self._optimizer.zero_grad()
        reports = []
        for indices, arrays, logprobs, entropy in self._passes(samples, token_weight):
            loss, metrics = self._loss([samples[i] for i in indices], arrays, logprobs, entropy)
            loss.backward()
            reports.append(metrics)
        return torch.stack(reports).sum(0), len(reports)

    def _update_weights(self, learning_rate: float) -> float:
        parameters = list(self._parameters())
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        if torch.isfinite(norm):
            torch.nn.utils.clip_grads_with_norm_(parameters, self.settings.max_grad_norm, norm)
            for group in self._optimizer.param_groups:
                group["lr"] = learning_rate
            self._optimizer.step()
        return float(norm)

    def _parameters(self) -> Iterable[torch.nn.Parameter]:
        return (parameter for parameter in self._network.parameters() if parameter.requires_grad)

    def _load_weights(self, folder: Path) -> None:
        read = weights(folder, self.shape)
        with torch.no_grad(), readable(folder):
            for name, own in self._hf_views():
                tensor = read(name)
                if tensor.shape != own.shape:
                    raise ConversionError(
                        f"{folder}: {name} is {tuple(tensor.shape)}; config.json asks for {tuple(own.shape)}"
                    )
                own.copy_(tensor)

    def _load_adapters(self, state: Mapping[str, torch.Tensor], folder: Path) -> None:
        with torch.no_grad():
            for name, parameter in self._adapters():
                if state[name].shape != parameter.shape:
                    raise CheckpointError(f"{folder}: {name} {tuple(state[name].shape)} is of another model")
                parameter.copy_(state[name])

    def _optimizer_state(self) -> Iterator[tuple[str, torch.Tensor]]:
        return state_of(self._optimizer, self._trained())

    def _load_optimizer_state(self, state: Mapping[str, torch.Tensor], folder: Path) -> None:
        load_state_of(self._optimizer, self._trained(), state, f"{folder}: optimizer state")

    def _trained(self) -> dict[str, torch.nn.Parameter]:
        # By its names in checkpoints
        return dict(self._adapters() if self._adapted else self._network.named_parameters())
