"""CPU seconds of a train step over those of the same step in plain torch and transformers.

Same weights, samples, loss, optimizer and number of updates; both must arrive at the same loss. The plain step is what
one would write by hand: padded batches, ``log_softmax`` and ``gather``, ``clip_grad_norm_``, AdamW. One thread, whose
CPU time is what the step would take on a machine that does nothing else; the two are timed in turns, and the medians
compared.

* demo: the shape of the demo's model and batch: 64 groups of 8 short samples, 8 updates;
* equal: 15 M parameters, 4 groups of 4 samples of 192 tokens; nothing is padded on either side;
* ragged: the same with 16 to 368 tokens; the plain step pads, the engine packs.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks._options import parser
from benchmarks._report import Row, report
from schemas import ExperienceGroup
from trinity_bus.config import TrainerSettings
from trinity_bus.training.megatron_engine import MegatronEngine
from trinity_bus.training.packing import first_fit_decreasing

GOAL = 1.2
THREADS = 1
LEARNING_RATE = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A model and a batch."""

    name: str
    vocabulary: int
    hidden: int
    layers: int
    heads: int
    head_dim: int
    groups: int
    group_size: int
    prompt: int
    lengths: tuple[int, int]
    updates: int
    micro_batch_tokens: int
    repeats: int


WORKLOADS = (
    Workload(
        name="demo", vocabulary=32, hidden=128, layers=4, heads=4, head_dim=32, groups=64, group_size=8, prompt=6,
        lengths=(8, 10), updates=8, micro_batch_tokens=4096, repeats=9,
    ),
    Workload(
        name="equal", vocabulary=4096, hidden=384, layers=8, heads=6, head_dim=64, groups=4, group_size=4, prompt=64,
        lengths=(192, 192), updates=1, micro_batch_tokens=1536, repeats=5,
    ),
    Workload(
        name="ragged", vocabulary=4096, hidden=384, layers=8, heads=6, head_dim=64, groups=4, group_size=4, prompt=8,
        lengths=(16, 368), updates=1, micro_batch_tokens=1536, repeats=5,
    ),
)  # fmt: skip


def make_model(load: Workload, folder: Path) -> Path:
    """Return a Qwen3 with random weights."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=load.vocabulary,
        hidden_size=load.hidden,
        num_hidden_layers=load.layers,
        num_attention_heads=load.heads,
        num_key_value_heads=2,
        head_dim=load.head_dim,
        intermediate_size=3 * load.hidden,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(config).float().save_pretrained(folder)
    return folder


def make_groups(load: Workload) -> list[ExperienceGroup]:
    """Random samples with the logprobs of a nearly uniform policy."""
    rng = np.random.default_rng(0)
    groups = []
    for number in range(load.groups):
        n = load.group_size
        lengths = rng.integers(load.lengths[0], load.lengths[1] + 1, n).astype(np.int32)
        responses = int((lengths - load.prompt).sum())
        groups.append(
            ExperienceGroup(
                task_id=f"task-{number}",
                attempt=1,
                batch_id="batch",
                batch_type="train",
                workflow="none",
                model="policy",
                explorer="none",
                incarnation="none",
                tokens=rng.integers(0, load.vocabulary, int(lengths.sum())).astype(np.int32),
                lengths=lengths,
                prompt_lengths=np.full(n, load.prompt, np.int32),
                logprobs=rng.normal(-np.log(load.vocabulary), 0.05, responses).astype(np.float32),
                mask_bits=np.packbits(np.ones(responses, np.bool_)),
                rewards=rng.random(n).astype(np.float32),
                run_ids=np.arange(n, dtype=np.int32),
                versions=np.array([[i, 0, 0] for i in range(n)], np.int32),
            )
        )
    return groups


class PlainTrainer:
    """The same step by hand."""

    def __init__(self, load: Workload, folder: Path) -> None:
        from transformers import Qwen3ForCausalLM

        self.load = load
        self.network = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
        self.optimizer = torch.optim.AdamW(
            self.network.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.99), weight_decay=0.0
        )
        self.steps = 0

    def train_step(self, groups: Sequence[ExperienceGroup]) -> float:
        """Trains on a batch; gives the mean loss of its updates."""
        samples = []
        for group in groups:
            advantages = (group.rewards - group.rewards.mean()) / (group.rewards.std() + 1e-4)
            samples += list(zip(group.samples(), advantages.tolist(), strict=True))
        order = np.random.default_rng((0, self.steps)).permutation(len(samples))
        self.steps += 1
        losses = []
        for part in np.array_split(order, self.load.updates):
            chosen = [samples[i] for i in part]
            total = sum(len(sample.logprobs) for sample, _ in chosen)
            bins = first_fit_decreasing([len(sample.tokens) for sample, _ in chosen], self.load.micro_batch_tokens)
            self.optimizer.zero_grad()
            loss_sum = 0.0
            for indices in bins:
                loss = self._micro_batch([chosen[i] for i in indices]) / total
                loss.backward()
                loss_sum += loss.item()
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
            self.optimizer.step()
            losses.append(loss_sum)
        return statistics.fmean(losses)

    def _micro_batch(self, chosen: list[tuple[Any, Any]]) -> torch.Tensor:
        rows, longest = len(chosen), max(len(sample.tokens) for sample, _ in chosen)
        tokens = torch.zeros(rows, longest, dtype=torch.long)
        attention = torch.zeros(rows, longest, dtype=torch.long)
        old, advantage, weight = (torch.zeros(rows, longest - 1) for _ in range(3))
        for row, (sample, value) in enumerate(chosen):
            n, p = len(sample.tokens), sample.prompt_length
            tokens[row, :n] = torch.from_numpy(sample.tokens.astype(np.int64))
            attention[row, :n] = 1
            old[row, p - 1 : n - 1] = torch.from_numpy(sample.logprobs.copy())
            advantage[row, p - 1 : n - 1] = value
            weight[row, p - 1 : n - 1] = 1
        # Where nothing is padded a mask would only keep SDPA from its fast path.
        padded = not bool(attention.all())
        logits = self.network(tokens, attention_mask=attention if padded else None, use_cache=False).logits
        logprobs = logits[:, :-1].log_softmax(-1).gather(2, tokens[:, 1:, None])[..., 0]
        ratio = (logprobs - old).exp()
        surrogate = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.28))
        return (surrogate * weight).sum()


def seconds(function: Callable[[], object]) -> float:
    """CPU seconds of a call."""
    began = time.process_time()
    function()
    return time.process_time() - began


def measure(load: Workload, folder: Path, repeats: int) -> list[Row]:
    """Time both, in turns."""
    make_model(load, folder)
    groups = make_groups(load)
    engine = MegatronEngine(
        TrainerSettings(
            model_path=str(folder),
            learning_rate=LEARNING_RATE,
            mini_batches=load.updates,
            micro_batch_tokens=load.micro_batch_tokens,
            threads=THREADS,
        )
    )
    plain = PlainTrainer(load, folder)
    losses = (engine.train_step(groups)["loss"], plain.train_step(groups))
    assert abs(losses[0] - losses[1]) < 1e-4, losses
    timings = [
        (seconds(lambda: engine.train_step(groups)), seconds(lambda: plain.train_step(groups))) for _ in range(repeats)
    ]
    ours, theirs = (statistics.median(column) for column in zip(*timings, strict=True))
    tokens = sum(len(group.tokens) for group in groups)
    return [
        Row(f"{load.name}: train step", ours, "CPU s", better="lower"),
        Row(f"{load.name}: plain torch and transformers", theirs, "CPU s", better="lower"),
        Row(f"{load.name}: ratio", ours / theirs, "", goal=GOAL, better="lower"),
        Row(f"{load.name}: throughput", tokens / ours, "tokens/CPU s"),
    ]


def main() -> None:
    """Run all workloads."""
    options = parser(__doc__).parse_args()
    torch.set_num_threads(THREADS)
    rows = []
    for load in WORKLOADS[:1] if options.short else WORKLOADS:
        with tempfile.TemporaryDirectory() as folder:
            rows += measure(load, Path(folder), 1 if options.short else load.repeats)
    report(
        "training",
        "GRPO step, Megatron-core engine against plain torch and transformers, one CPU thread, float32",
        rows,
        options,
    )


if __name__ == "__main__":
    main()
