from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from schemas.groups.kept import decode_kept
from tests.support.fakes.experiences import kept_of
from trinity_bus.training.kept_rows import KeptRows
from trinity_bus.training.megatron.logprobs import vocab_parallel_logprobs
from trinity_bus.training.steps import packing


def of_logits(logits: torch.Tensor, targets: torch.Tensor, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Whatever the logits are: those of an output layer that leaves its input as it is."""
    return vocab_parallel_logprobs(logits, torch.eye(logits.shape[1], dtype=logits.dtype), targets, **options)


def reference(
    logits: torch.Tensor, targets: torch.Tensor, temperatures: Any = 1.0, sets: Sequence[Sequence[int]] = ()
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = logits.float() / temperatures
    if not sets:
        logp = logits.log_softmax(-1)
        return logp.gather(1, targets[:, None])[:, 0], -(logp.exp() * logp).sum(-1)
    # A softmax over those logits alone that there are
    chosen, entropies = [], []
    for row, target, kept in zip(logits, targets.tolist(), sets, strict=True):
        ids = kept or range(len(row))
        of_kept = row[list(ids)].log_softmax(-1)
        chosen.append(of_kept[list(ids).index(target)])
        entropies.append(-(of_kept.exp() * of_kept).sum())
    return torch.stack(chosen), torch.stack(entropies)


@pytest.mark.parametrize("chunk", [1, 7 * 11, 1 << 24])
@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("tempered", [False, True])
@pytest.mark.parametrize("wanted", [(0,), (1,), (0, 1)], ids=["logprobs", "entropies", "both"])
def test_values_and_gradients(
    *, limited: bool, tempered: bool, chunk: int, wanted: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "LOGITS_AT_ONCE", chunk)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(40, 11, generator=generator).mul_(3)
    targets = torch.randint(0, 9, (40,), generator=generator)
    seeds, each = torch.randn(2, 40, generator=generator), torch.rand(40, generator=generator) + 0.7
    # Two columns are padding.
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    # Of each third row the whole vocabulary; of the one after it the target alone, where that is 0.
    sets = [sorted({target, *range(target)}) if row % 3 else [] for row, target in enumerate(targets.tolist())]
    kept = rows_of(sets) if limited else None
    got = of_logits(ours, targets, vocabulary=9, temperatures=each if tempered else None, kept=kept)
    expected = reference(theirs[:, :9], targets, each[:, None] if tempered else 1.0, sets if limited else ())
    for value, other in zip(got, expected, strict=True):
        torch.testing.assert_close(value, other, atol=1e-6, rtol=1e-5)
    for result in (got, expected):
        sum((result[which] * seeds[which]).sum() for which in wanted).backward()
    assert ours.grad is not None
    torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-6, rtol=1e-5)
    assert (ours.grad[:, 9:] == 0).all()


def rows_of(sets: Sequence[Sequence[int]]) -> KeptRows:
    return KeptRows(decode_kept(kept_of(*sets), len(sets)), torch.device("cpu"))


def test_of_the_only_token_that_was_kept_nothing_is_learned() -> None:
    logits = torch.randn(3, 5, generator=torch.Generator().manual_seed(1)).requires_grad_()
    values, entropy = of_logits(logits, torch.tensor([4, 0, 2]), vocabulary=5, kept=rows_of([[4], [0], [2]]))
    assert values.tolist() == entropy.tolist() == [0.0] * 3
    (values + entropy).sum().backward()
    assert logits.grad is not None
    assert not logits.grad.any()


def test_certain_and_impossible_tokens() -> None:
    logits = torch.tensor([[0.0, -1e38, -1e9], [1e4, 0.0, 0.0]], requires_grad=True)
    values, entropy = of_logits(logits, torch.tensor([0, 0]), vocabulary=3)
    assert values.tolist() == [0.0, 0.0]
    assert entropy[1].item() == 0.0
    values.sum().backward()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()


def test_half_precision_logits_keep_their_type() -> None:
    logits = torch.randn(6, 16, generator=torch.Generator().manual_seed(2)).bfloat16().requires_grad_()
    values, _ = of_logits(logits, torch.arange(6), vocabulary=16)
    assert values.dtype is torch.float32
    torch.testing.assert_close(values, reference(logits, torch.arange(6))[0], atol=1e-6, rtol=1e-5)
    values.sum().backward()
    assert logits.grad is not None
    assert logits.grad.dtype is torch.bfloat16


@pytest.mark.parametrize("chunk", [1, 5 * 30, 1 << 24])
def test_the_output_layers_gradient_and_that_of_hidden_states(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "LOGITS_AT_ONCE", chunk)
    generator = torch.Generator().manual_seed(4)
    # Two rows of the output layer are padding.
    hidden, weight = torch.randn(20, 6, generator=generator), torch.randn(32, 6, generator=generator)
    targets, seeds = torch.randint(0, 30, (20,), generator=generator), torch.randn(2, 20, generator=generator)
    ours, theirs = ([x.clone().requires_grad_() for x in (hidden, weight)] for _ in range(2))
    got = vocab_parallel_logprobs(ours[0], ours[1], targets, vocabulary=30)
    expected = reference((theirs[0] @ theirs[1].T)[:, :30], targets)
    for result in (got, expected):
        sum((value * seed).sum() for value, seed in zip(result, seeds, strict=True)).backward()
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own.grad, other.grad, atol=1e-5, rtol=1e-5)
    sums, again = torch.ones(32, 6), [x.clone().requires_grad_() for x in (hidden, weight)]
    got = vocab_parallel_logprobs(again[0], again[1], targets, vocabulary=30, sums=sums)
    sum((value * seed).sum() for value, seed in zip(got, seeds, strict=True)).backward()
    assert again[1].grad is None
    torch.testing.assert_close(sums - 1, theirs[1].grad, atol=1e-5, rtol=1e-5)


def test_only_one_chunk_of_logits_is_there_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "LOGITS_AT_ONCE", 10 * 64)
    hidden, weight = torch.randn(100, 4, requires_grad=True), torch.randn(64, 4, requires_grad=True)
    largest = 0

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            result = function(*args, **(kwargs or {}))
            largest = max(largest, result.numel() if isinstance(result, torch.Tensor) else 0)
            return result

    with Sizes():
        values, _ = vocab_parallel_logprobs(hidden, weight, torch.zeros(100, dtype=torch.long), vocabulary=64)
        values.sum().backward()
    assert largest == 10 * 64
