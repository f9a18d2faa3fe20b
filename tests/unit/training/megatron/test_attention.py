"""Which kernel packed sequences are given to. FAKE: tensors that say they are on a GPU."""

from types import SimpleNamespace

import pytest
import torch

from trinity_bus.training.megatron.attention import SDPAttention
from trinity_bus.training.megatron.rotary import Rotation


class OnGpu(torch.Tensor):
    is_cuda = True


def packed(kind: type[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    torch.manual_seed(0)
    query, key, value = (torch.randn(5, heads, 8).to(dtype).as_subclass(kind) for heads in (4, 2, 2))
    bounds = SimpleNamespace(
        cu_seqlens_q=torch.tensor([0, 2, 5], dtype=torch.int32),
        max_seqlen_q=3,
        rotation=Rotation(torch.ones(8, dtype=dtype), torch.zeros(8, dtype=dtype)),
        shared=None,
    )
    attention = SDPAttention(SimpleNamespace(context_parallel_size=1), 1)
    return attention(query, key, value, packed_seq_params=bounds)


def test_float32_on_a_gpu_is_padded_inside() -> None:
    assert torch.equal(packed(OnGpu, torch.float32).as_subclass(torch.Tensor), packed(torch.Tensor, torch.float32))


def test_bfloat16_on_a_gpu_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[torch.dtype] = []

    def kernel(query: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        given.append(query.dtype)
        return query

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", kernel)
    packed(OnGpu, torch.bfloat16)
    assert given == [torch.bfloat16]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_prompt_that_is_computed_once_is_attended_to_and_learns_as_if_it_were_there_twice(dtype: torch.dtype) -> None:
    """Two samples of one prompt of two tokens, with one token and with two of their own."""
    torch.manual_seed(0)
    computed, places = torch.tensor([0, 1, 2, 5, 6]), torch.tensor([0, 1, 2, 0, 1, 3, 4])
    rows = [torch.randn(5, heads, 8).to(dtype).requires_grad_() for heads in (4, 2, 2)]
    attention = SDPAttention(SimpleNamespace(context_parallel_size=1), 1)

    def attended(tokens: torch.Tensor, shared: tuple[torch.Tensor, torch.Tensor] | None) -> torch.Tensor:
        cosines = torch.full((len(tokens), 1, 8), 0.5, dtype=dtype)
        bounds = SimpleNamespace(
            cu_seqlens_q=torch.tensor([0, 3, 7], dtype=torch.int32),
            max_seqlen_q=4,
            rotation=Rotation(cosines, cosines / 2),
            shared=shared,
        )
        return attention(*(row[tokens] for row in rows), packed_seq_params=bounds)

    once = attended(torch.arange(5), (computed, places))
    twice = attended(places, None)[computed]
    assert once.dtype is dtype
    torch.testing.assert_close(once, twice)
    weights = torch.randn_like(once)
    gradients = [torch.autograd.grad((out * weights).sum(), rows, retain_graph=True) for out in (once, twice)]
    for one, other in zip(*gradients, strict=True):
        # Sums of what nearly cancels have errors of the addends.
        torch.testing.assert_close(one, other, rtol=0.02, atol=1e-6 if dtype is torch.float32 else 0.02)
