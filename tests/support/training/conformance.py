"""What every training engine must do, in every layout: checks against the reference, ``TorchEngine``.

Each check is called by all ranks of a layout together, with the same arguments; it raises where an engine falls short.
What the reference comes to is computed once in a process, for all layouts that it is compared with.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch
from msgspec import structs
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode

from schemas import ExperienceGroup
from schemas.groups.kept import decode_kept
from tests.support.fakes.examples import demonstrations, preferences
from tests.support.fakes.experiences import drawn_from_some, make_group
from trinity_bus.config import TrainerSettings
from trinity_bus.training import checkpoint, tensors
from trinity_bus.training.engines import adapters
from trinity_bus.training.engines.megatron_engine import MegatronEngine
from trinity_bus.training.engines.rank_engine import RankEngine
from trinity_bus.training.engines.saving import export
from trinity_bus.training.engines.torch_engine import TorchEngine
from trinity_bus.training.errors import ParallelError, TrainingInterruptedError
from trinity_bus.training.steps.packing import PackedArrays, TrainSample
from trinity_bus.training.steps.samples import with_routes
from trinity_bus.training.tensors import WEIGHTS
from trinity_bus.weights.staging import Staging

VOCABULARY: Final = 31
"""Odd, so that it is padded where it is split."""
SMALL_RATE: Final = 1e-3
SAME: Final = ("loss", "policy_loss", "grad_norm", "entropy", "rollout_k3", "kl", "importance_weight_mean")
OBJECTIVES: Final[dict[str, dict[str, Any]]] = {
    "ppo": {},
    "ppo, recomputed, kl, entropy": {"old_logprobs": "recompute", "kl_coef": 0.1, "entropy_coef": 0.01},
    "gspo, rloo, masked": {"loss": "gspo", "advantage": "rloo", "correction": "masked", "old_logprobs": "recompute"},
    "opmd, one update, by its own tokens": {
        "loss": "opmd",
        "advantage": "opmd",
        "mini_batches": 1,
        "loss_normalizer": "update",
    },
    "cispo, by sequences, k2, whole sequences corrected": {
        "loss": "cispo",
        "loss_normalizer": "sequence",
        "old_logprobs": "recompute",
        "correction": "icepop",
        "correction_level": "geometric",
        "kl_coef": 0.1,
        "kl_estimator": "k2",
    },
    "topr, a critic, kl in the reward": {
        "loss": "topr",
        "advantage": "gae",
        "gae_lambda": 0.9,
        "kl_coef": 0.1,
        "kl_placement": "reward",
    },
    "warm, activations computed again": {"temperature": 0.7, "recompute": True},
}

LORA: Final[dict[str, Any]] = {"lora_rank": 3, "lora_alpha": 6.0, "kl_coef": 0.1, "learning_rate": 1e-2}
"""Settings of the check ``lora``."""


@dataclass(frozen=True, slots=True)
class Subject:
    open: Callable[[TrainerSettings], RankEngine]
    folder: Path
    """Of a model."""
    scratch: Path
    """Empty, of this check alone, the same on all ranks."""
    layout: dict[str, Any]
    """Settings."""
    objectives: Sequence[str] = tuple(OBJECTIVES)
    """Those whose losses and gradients are compared."""

    def settings(self, **settings: Any) -> TrainerSettings:
        values = {"learning_rate": SMALL_RATE, "mini_batches": 2, "micro_batch_tokens": 24, "weight_decay": 0.1}
        return TrainerSettings(**{"model_path": str(self.folder), "threads": 1, **values, **settings})

    def make(self, **settings: Any) -> RankEngine:
        return self.open(self.settings(**{**self.layout, **settings}))

    def reference(self, **settings: Any) -> TorchEngine:
        return TorchEngine(self.settings(**settings))

    def told(self, **settings: Any) -> str:
        """The reference's settings, for what is computed once for each."""
        return self.settings(**settings).model_dump_json()


def batch(step: int, groups: int = 3) -> list[ExperienceGroup]:
    return [make_group(seed=10 * step + i, vocabulary=VOCABULARY, version=step) for i in range(groups)]


def weights(engine: RankEngine) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in engine.hf_tensors()}


def gradients(engine: RankEngine) -> dict[str, torch.Tensor]:
    if isinstance(engine, MegatronEngine):
        return dict(engine.model.tensors(lambda p: p.main_grad.clone()))
    assert isinstance(engine, TorchEngine)
    named = engine._network.named_parameters()
    return {n: g for name, parameter in named for n, g in tensors.of_transformers(name, parameter.grad)}


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def timeless(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name != "seconds"}


def sharded[T](engine: RankEngine, samples: Sequence[T]) -> list[T]:
    """This rank's part, of as many samples as there are ranks at least."""
    return list(samples[engine.layout.data_rank :: engine.layout.data_parallel])


def samples_of(engine: RankEngine) -> list[TrainSample]:
    (update,) = engine.plan(batch(0)).updates
    return list(update.samples)


def lonely(_step: int) -> list[ExperienceGroup]:
    """Two samples: of two updates, a rank has none of one."""
    return [make_group(rewards=[0.0, 1.0], vocabulary=VOCABULARY)]


@dataclass(frozen=True, slots=True)
class Trained:
    metrics: list[dict[str, float]]
    """Of each step."""
    weights: dict[str, torch.Tensor]
    adapters: dict[str, torch.Tensor]


def _engine(told: str) -> TorchEngine:
    return TorchEngine(TrainerSettings.model_validate_json(told))


@cache
def trained(told: str, batches: Callable[[int], list[ExperienceGroup]] = batch, steps: int = 2) -> Trained:
    """The reference, after some steps."""
    engine = _engine(told)
    metrics = [engine.train_step(batches(step)) for step in range(steps)]
    return Trained(metrics, weights(engine), {name: tensor.clone() for name, tensor in engine.adapter_tensors()})


@cache
def reference_logits(told: str) -> list[torch.Tensor]:
    """Of each sample of the first batch."""
    engine = _engine(told)
    with torch.no_grad():
        tokens = [torch.from_numpy(sample.tokens.astype(np.int64))[None] for sample in samples_of(engine)]
        return [engine._network(each).logits[0] for each in tokens]


@cache
def reference_gradients(told: str) -> dict[str, torch.Tensor]:
    return gradients_of_first_update(_engine(told))


def gradients_of_first_update(engine: RankEngine) -> dict[str, torch.Tensor]:
    step = engine.plan(batch(0)).shard(engine.layout.data_rank, engine.layout.data_parallel)
    (update,), _ = engine._with_passes(step.updates)
    engine._accumulate(update.samples, 1 / update.divisor)
    return gradients(engine)


def losses(subject: Subject) -> None:
    for name in subject.objectives:
        settings = OBJECTIVES[name]
        engine, reference = subject.make(**settings), trained(subject.told(**settings))
        for step, theirs in enumerate(reference.metrics):
            ours = engine.train_step(batch(step))
            assert ours.keys() == theirs.keys(), name
            for metric in theirs.keys() - {"seconds", "micro_batches"}:
                assert ours[metric] == pytest.approx(theirs[metric], rel=2e-3, abs=1e-4), (name, step, metric)
        for tensor_name, tensor in engine.hf_tensors():
            # Rounding shows where AdamW divides a gradient that is next to nothing by itself.
            difference = (tensor - reference.weights[tensor_name]).abs()
            assert difference.mean() < 0.02 * SMALL_RATE, (name, tensor_name)


def examples(subject: Subject) -> None:
    """What nobody drew, alone and beside what was drawn."""
    for settings, shown, groups in (
        ({"loss": "sft"}, demonstrations(5), ()),
        ({"loss": "dpo"}, preferences(5), ()),
        ({"strategy": "mix", "old_logprobs": "recompute"}, demonstrations(3), batch(0)),
    ):
        engine, reference = subject.make(**settings), subject.reference(**settings)
        for step in range(2):
            ours = engine.train_step(groups, examples=shown)
            theirs = reference.train_step(groups, examples=shown)
            assert ours.keys() == theirs.keys(), settings
            # Which of two answers a policy prefers that is still its own reference is a matter of rounding.
            undecided = {"dpo_accuracy"} if step == 0 else set[str]()
            for metric in theirs.keys() - {"seconds", "micro_batches"} - undecided:
                assert ours[metric] == pytest.approx(theirs[metric], rel=2e-3, abs=1e-5), (settings, step, metric)


def logits(subject: Subject) -> None:
    engine = subject.make(mini_batches=1)
    assert isinstance(engine, MegatronEngine)
    mine = sharded(engine, samples_of(engine))
    reference = sharded(engine, reference_logits(subject.told(mini_batches=1)))

    def collect(
        indices: Sequence[int], arrays: PackedArrays, found: torch.Tensor, *, non_loss_data: bool
    ) -> tuple[Sequence[int], PackedArrays, torch.Tensor]:
        del non_loss_data
        return indices, arrays, engine.output_states(found) @ engine.model.output_weight.T

    with torch.no_grad():
        outputs = engine.run(mine, collect, token_weight=0.0, forward_only=True)
        assert bool(outputs) == (engine.layout.pipeline_rank == engine.layout.pipeline_parallel - 1)
        for indices, arrays, found in outputs:
            rows = np.arange(len(arrays.tokens))[engine._own_tokens(arrays)]
            expected = torch.full((len(arrays.tokens), VOCABULARY), torch.nan)
            for i, start in zip(indices, arrays.bounds.tolist(), strict=False):
                expected[start : start + len(mine[i].tokens)] = reference[i]
            first = found.shape[1] * engine.layout.tensor_rank
            columns = expected[rows, first : first + found.shape[1]]
            real = ~columns.isnan().any(1)
            torch.testing.assert_close(found[real, : columns.shape[1]], columns[real], rtol=0, atol=1e-5)


def temperatures(subject: Subject) -> None:
    """Each sample at its own temperature, against transformers' logits, divided by hand."""
    engine, network = subject.make(mini_batches=1, temperature=0.9), subject.reference()._network
    drawn = [None, 0.5, 1.0, 2.0]
    samples = [structs.replace(s, temperature=drawn[i % 4]) for i, s in enumerate(samples_of(engine))]
    for found, sample in zip(engine.logprobs(samples), samples, strict=True):
        tokens = torch.from_numpy(sample.tokens.astype(np.int64)).to(engine.layout.device)
        with torch.no_grad():
            logits = network(input_ids=tokens[None]).logits[0, :-1]
        divided = logits / (0.9 if sample.temperature is None else sample.temperature)
        expected = divided.log_softmax(-1).gather(1, tokens[1:, None])[sample.prompt_length - 1 :, 0]
        np.testing.assert_allclose(found, expected.cpu().numpy(), atol=1e-5)


def kept_tokens(subject: Subject) -> None:
    """What was drawn from some tokens alone, against a softmax over their logits by hand; and steps on it."""

    def limited(step: int) -> list[ExperienceGroup]:
        return [drawn_from_some(g, vocabulary=VOCABULARY, seed=i) for i, g in enumerate(batch(step))]

    engine, network = subject.make(mini_batches=1, temperature=0.9), subject.reference()._network
    (update,) = engine.plan(limited(0)).updates
    assert any(sample.kept is None for sample in update.samples), "some are drawn from all"
    for found, sample in zip(engine.logprobs(update.samples), update.samples, strict=True):
        tokens = torch.from_numpy(sample.tokens.astype(np.int64))
        with torch.no_grad():
            logits = network(input_ids=tokens[None].to(engine.layout.device)).logits[0, sample.prompt_length - 1 : -1]
        logits = logits.cpu() / (0.9 if sample.temperature is None else sample.temperature)
        counts, ids = decode_kept(bytes(len(found)) if sample.kept is None else sample.kept, len(found))
        for row, token, own, value in zip(
            logits, tokens[sample.prompt_length :], np.split(ids, np.cumsum(counts)[:-1]), found, strict=True
        ):
            among = row if not len(own) else row[torch.from_numpy(own)]
            assert value == pytest.approx(float(row[token] - among.logsumexp(0)), abs=1e-5)
            assert len(own) != 1 or value == 0, "of a single token the ratio is 1"
    settings: dict[str, Any] = {"old_logprobs": "recompute", "kl_coef": 0.1, "entropy_coef": 0.01}
    ours, theirs = subject.make(**settings), subject.reference(**settings)
    for step in range(2):
        found_of, expected = ours.train_step(limited(step)), theirs.train_step(limited(step))
        for metric in expected.keys() - {"seconds", "micro_batches"}:
            assert found_of[metric] == pytest.approx(expected[metric], rel=2e-3, abs=1e-4), (step, metric)


def gradients_of_one_update(subject: Subject) -> None:
    for name in subject.objectives:
        settings = {**OBJECTIVES[name], "mini_batches": 1}
        # With the distributed optimizer no rank has all of them.
        ours = gradients_of_first_update(subject.make(**settings, distributed_optimizer=False))
        theirs = reference_gradients(subject.told(**settings))
        assert ours.keys() == theirs.keys()
        for tensor_name, expected in theirs.items():
            where = f"{name}, {tensor_name}: "
            torch.testing.assert_close(
                ours[tensor_name], expected, rtol=1e-4, atol=1e-6, msg=lambda why, where=where: where + why
            )


def saved(engine: RankEngine, written: Future[Path]) -> Path:
    folder = written.result()
    if engine.layout.world_size > 1:
        torch.distributed.barrier()
    return folder


def exported(engine: RankEngine, folder: Path, target: Path) -> None:
    if engine.layout.rank == 0:
        export(folder, target, engine.source, engine.settings)
    if engine.layout.world_size > 1:
        torch.distributed.barrier()


def replayed_routes(subject: Subject) -> None:
    """Routers choose what they are told to, and learn as if they had chosen it."""
    # With the distributed optimizer no rank has all gradients.
    engine = subject.make(mini_batches=1, router_replay=True, distributed_optimizer=False)
    reference = subject.reference(mini_batches=1)
    assert isinstance(engine, MegatronEngine)
    layers, experts, k = engine.shape.layers, engine.shape.experts, engine.shape.experts_per_token
    samples, rng = [], np.random.default_rng(0)
    for s in samples_of(engine):
        routes = rng.random((len(s.tokens), layers, experts)).argsort(2)[..., :k].reshape(len(s.tokens), -1)
        samples.append(structs.replace(s, routes=routes.astype(np.uint8)))
    samples[0] = structs.replace(samples[0], routes=None)
    kept, told = with_routes(samples, engine.shape, replay=True)
    assert told == {"samples_without_routes": 1.0}
    own = engine.logprobs(samples_of(engine))
    found = engine.logprobs(kept)
    np.testing.assert_allclose(found[0], own[0], atol=1e-5)
    assert abs(found[1] - own[1]).max() > 1e-3

    def told_to(layer: int, sample: TrainSample, gate: Any, hidden: torch.Tensor) -> tuple[torch.Tensor, ...]:
        logits = torch.nn.functional.linear(hidden.reshape(-1, hidden.shape[-1]), gate.weight)
        assert sample.routes is not None
        chosen = torch.from_numpy(sample.routes.astype(np.int64)).unflatten(1, (layers, k))[:, layer]
        return logits, logits.gather(1, chosen).softmax(-1), chosen

    for number, sample in enumerate(kept[1:], 1):
        for layer, block in enumerate(reference._network.model.layers):
            block.mlp.gate.forward = partial(told_to, layer, sample, block.mlp.gate)
        tokens = torch.from_numpy(sample.tokens.astype(np.int64))
        logp = reference._network(tokens[None]).logits[0, :-1].log_softmax(-1).gather(1, tokens[1:, None])
        logp = logp[sample.prompt_length - 1 :, 0]
        np.testing.assert_allclose(found[number], logp.detach().numpy(), atol=1e-5)
        (logp * torch.from_numpy(sample.mask)).sum().backward()

    def loss(_: Sequence[int], arrays: PackedArrays, hidden: torch.Tensor) -> Any:
        logprobs, _ = engine.token_logprobs(hidden, arrays)
        return (logprobs * torch.from_numpy(arrays.weight)).sum(), torch.ones((), dtype=torch.int), torch.zeros(())

    engine.network.zero_grad_buffer()
    engine.run(sharded(engine, kept[1:]), loss, token_weight=1.0, forward_only=False)
    ours, theirs = gradients(engine), gradients(reference)
    assert all(theirs[name].abs().max() > 0 for name in theirs if name.endswith("mlp.gate.weight")), "routers learn"
    for name, expected in theirs.items():
        torch.testing.assert_close(ours[name], expected, rtol=1e-4, atol=1e-5)


def restart(subject: Subject) -> None:
    settings = {
        "kl_coef": 0.1, "old_logprobs": "recompute", "mini_batches": 3, "warmup_steps": 3, "advantage": "gae"
    }  # fmt: skip
    undisturbed = subject.make(**settings)
    expected = [timeless(undisturbed.train_step(batch(step))) for step in range(3)]

    first = subject.make(**settings)
    assert first.load_latest(subject.scratch) is None
    seen = [timeless(first.train_step(batch(0)))]
    written = first.save_checkpoint(subject.scratch, first.progress.model_copy(update={"batches_offset": 17}))
    first.train_step(batch(2))  # beside it, and lost
    assert saved(first, written) == checkpoint.latest(subject.scratch)
    torch.manual_seed(99)

    second = subject.make(**settings)
    progress = second.load_latest(subject.scratch)
    assert progress is not None
    assert (progress.step, progress.version, progress.batches_offset) == (1, 1, 17)
    assert progress.trained_tokens == expected[0]["trained_tokens"]
    seen += [timeless(second.train_step(batch(step))) for step in (1, 2)]
    assert seen == expected
    assert same(weights(second), weights(undisturbed))


class NoWeightForEachToken(TorchDispatchMode):
    """Fails where [tokens, 1, features] are multiplied with a weight token by token: it is copied for each."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is not torch.ops.aten.bmm.default or args[0].shape[1] > 1
        return func(*args, **(kwargs or {}))


def lora(subject: Subject) -> None:
    """Adapters learn what the reference's learn; what is published is merged; a restart goes on with them."""
    settings = LORA
    if subject.folder.name == "qwen3_moe":
        with pytest.raises(ParallelError, match="a model with experts has no adapters here; 0 can be trained"):
            subject.make(**settings)
        return
    engine, reference = subject.make(**settings), trained(subject.told(**settings))
    before = weights(engine)
    for step, theirs in enumerate(reference.metrics):
        with NoWeightForEachToken():
            ours = engine.train_step(batch(step))
        for metric in SAME:
            assert ours[metric] == pytest.approx(theirs[metric], rel=2e-3, abs=1e-5), (step, metric)
    expected = reference.adapters
    adapter = {name: tensor.clone() for name, tensor in engine.adapter_tensors()}
    assert adapter.keys() == expected.keys()
    for name, tensor in adapter.items():
        assert (tensor - expected[name]).abs().mean() < 2e-4, name
        assert tensor.abs().max() > 0, name
    merged = weights(engine)
    for name, weight in before.items():
        a, b = (adapter.get(peft) for peft in adapters.peft_names(name.removesuffix(".weight")))
        torch.testing.assert_close(merged[name], weight if a is None or b is None else weight + 2.0 * b @ a)

    folder = saved(engine, engine.save_checkpoint(subject.scratch / "checkpoints", engine.progress))
    exported(engine, folder, subject.scratch / "model")
    again = subject.make(**settings)
    again.load_latest(subject.scratch / "checkpoints")
    assert same(weights(again), merged)
    timeless_both = [timeless(one.train_step(batch(2))) for one in (engine, again)]
    assert timeless_both[0] == timeless_both[1]
    assert same(weights(again), weights(engine))
    written = load_file(subject.scratch / "model" / adapters.FOLDER / "adapter_model.safetensors")
    assert same(written, adapter)
    # What explorers are given computes what the trainer trains.
    served = TorchEngine(subject.settings(model_path=str(subject.scratch / "model"), mini_batches=1))
    loaded = subject.make(**settings)
    loaded.load_latest(subject.scratch / "checkpoints")
    samples = samples_of(served)
    for found, as_served in zip(loaded.logprobs(samples), served.logprobs(samples), strict=True):
        np.testing.assert_allclose(found, as_served, atol=1e-5)


def gradients_that_are_not_finite(subject: Subject) -> None:
    engine = subject.make(mini_batches=1)
    engine.train_step(batch(0))
    before, state = weights(engine), {n: t.clone() for n, t in engine._optimizer_state()}
    step = engine.plan(batch(1))
    (update,) = step.updates
    broken = [structs.replace(s, advantages=np.full_like(s.advantages, np.inf)) for s in update.samples[:1]]
    step = replace(step, updates=[replace(update, samples=[*broken, *update.samples[1:]])])
    told = engine.train(step.shard(engine.layout.data_rank, engine.layout.data_parallel))
    assert (told["updates"], told["updates_skipped"], told["updates_skipped_in_a_row"]) == (0, 1, 1)
    assert engine.progress.step == 2, "it is a step, in which nothing was learned"
    assert same(weights(engine), before)
    assert same(dict(engine._optimizer_state()), state)
    assert engine.train_step(batch(2))["updates_skipped_in_a_row"] == 0
    assert not same(weights(engine), before)


def what_is_published(subject: Subject) -> None:
    engine = subject.make()
    names = [name for name, _ in engine.hf_tensors()]
    assert sorted(names) == sorted(name for name, _ in subject.reference().hf_tensors())
    assert same(weights(engine), load_file(subject.folder / WEIGHTS))
    engine.train_step(batch(0))
    folder = saved(engine, engine.save_checkpoint(subject.scratch / "checkpoints", engine.progress))
    exported(engine, folder, subject.scratch / "model")
    kept = weights(engine)
    for written in (folder, subject.scratch / "model"):
        published = load_file(written / WEIGHTS)
        assert same(published, kept)
        assert (written / "tokenizer.json").read_text() == (subject.folder / "tokenizer.json").read_text()

    def checksum(tensors: Iterator[tuple[str, torch.Tensor]]) -> str:
        return Staging(bucket_bytes=1 << 12, retain=1, dtype="bfloat16").stage(1, tensors).checksum

    assert checksum(engine.hf_tensors()) == checksum((name, published[name]) for name in names)


def short_of_memory(subject: Subject) -> None:
    """The first rank is out of memory with more than a few tokens: it takes fewer, and the others wait for it."""
    settings = {"micro_batch_tokens": 200, "advantage": "gae"}
    engine, reference = subject.make(**settings), subject.reference(**settings)
    if engine.layout.rank == 0:
        assert engine._critic is not None
        for network in (_network(engine), engine._critic._network["trunk"]):
            network.forward = _limited(network.forward, tokens=30)
    ours, theirs = engine.train_step(batch(0)), reference.train_step(batch(0))
    assert theirs["micro_batches_halved"] == 0
    assert ours["micro_batches_halved"] >= 1
    for metric in theirs.keys() - {"seconds", "micro_batches", "micro_batches_halved"}:
        assert ours[metric] == pytest.approx(theirs[metric], rel=2e-3, abs=1e-4), metric
    expected = weights(reference)
    for name, tensor in engine.hf_tensors():
        assert (tensor - expected[name]).abs().mean() < 0.02 * SMALL_RATE, name


def _network(engine: RankEngine) -> torch.nn.Module:
    if isinstance(engine, MegatronEngine):
        return engine.model.stage
    assert isinstance(engine, TorchEngine)
    decoder: torch.nn.Module = engine._network.get_decoder()
    return decoder


def _limited(forward: Callable[..., Any], tokens: int) -> Callable[..., Any]:
    def limited(*given: Any, **named: Any) -> Any:
        ids = given[0] if given else named["input_ids"]
        if ids.numel() > tokens:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 TiB")
        return forward(*given, **named)

    return limited


def an_interruption(subject: Subject) -> None:
    engine = subject.make()
    engine.interrupt()
    with pytest.raises(TrainingInterruptedError, match="abandoned on request"):
        engine.train_step(batch(0))
    assert engine.progress.step == 0


def a_batch_that_teaches_nothing(subject: Subject) -> None:
    engine = subject.make()
    before = weights(engine)
    metrics = engine.train_step([make_group(rewards=[1.0, 1.0], vocabulary=VOCABULARY)])
    assert (metrics["updates"], metrics["groups_skipped"], metrics["reward_mean"]) == (0, 1, 1)
    assert "loss" not in metrics
    assert engine.train_step([])["samples"] == 0
    assert (engine.progress.step, engine.progress.version) == (2, 2)
    assert same(weights(engine), before)


def fewer_samples_than_ranks(subject: Subject) -> None:
    """An update of one sample: a rank that has none of it takes part all the same."""
    (theirs,) = trained(subject.told(mini_batches=2), lonely, 1).metrics
    ours = subject.make(mini_batches=2).train_step(lonely(0))
    assert theirs["updates"] == 2
    for metric in SAME:
        assert ours[metric] == pytest.approx(theirs[metric], rel=2e-3, abs=1e-5), metric


CHECKS: Final[dict[str, Callable[[Subject], None]]] = {
    check.__name__: check
    for check in (
        losses,
        examples,
        logits,
        temperatures,
        kept_tokens,
        gradients_of_one_update,
        replayed_routes,
        restart,
        lora,
        gradients_that_are_not_finite,
        what_is_published,
        a_batch_that_teaches_nothing,
        fewer_samples_than_ranks,
        short_of_memory,
        an_interruption,
    )
}
"""All of them, by name."""
_COMPARING: Final = ("losses", "examples", "logits", "gradients_of_one_update", "fewer_samples_than_ranks")
_OF_ROUTERS: Final = ("replayed_routes",)


def checks_of(family: str, *, reference: bool = False) -> list[str]:
    """The checks that can fail for a family; of the reference those that do not compare it with itself."""
    without = (*(_COMPARING if reference else ()), *(() if family == "qwen3_moe" and not reference else _OF_ROUTERS))
    return [check for check in CHECKS if check not in without]
