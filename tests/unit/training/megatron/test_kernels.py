"""Which kernel packed sequences are given to; the norm's own backward pass; and rotary positions of packed sequences.

FAKE: tensors that say they are on a GPU, and a group of ranks of which there is only the number and whose turn it is.
"""

from types import SimpleNamespace

import pytest
import torch

from tests.support.training.samples import packed_bounds
from trinity_bus.training.megatron.layers import Rotation, SDPAttention, rms_norm, rotate, rotation_of
from trinity_bus.training.steps import packing


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


EPSILON = 1e-6


@pytest.mark.parametrize("shape", [(5, 1, 16), (5, 4, 8)])
def test_it_is_torchs_bit_for_bit_and_so_is_its_gradient_but_for_rounding(shape: tuple[int, ...]) -> None:
    drawn = torch.Generator().manual_seed(0)
    values, scales = torch.randn(shape, generator=drawn), torch.rand(shape[-1:], generator=drawn)
    # A row of zeros, as a pruned model may have it, is where the epsilon counts.
    values[0] = 0
    wanted = torch.randn(shape, generator=drawn)
    found = []
    for norm in (rms_norm, lambda x, weight, eps: torch.nn.functional.rms_norm(x, weight.shape, weight, eps)):
        x, weight = values.clone().requires_grad_(), scales.clone().requires_grad_()
        result = norm(x, weight, EPSILON)
        result.backward(wanted)
        found.append((result.detach(), x.grad, weight.grad))
    (own, *gradients), (torchs, *their_gradients) = found
    assert torch.equal(own, torchs)
    torch.testing.assert_close(gradients, their_gradients)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_it_is_torchs_as_far_as_its_docstring_says(dtype: torch.dtype) -> None:
    drawn = torch.Generator().manual_seed(2)
    x, weight = (torch.randn(shape, generator=drawn, dtype=torch.float64).to(dtype) for shape in ((64, 896), (896,)))
    own, torchs = rms_norm(x, weight, EPSILON), torch.nn.functional.rms_norm(x, weight.shape, weight, EPSILON)
    assert torch.equal(own, torchs) == (dtype in {torch.float32, torch.float64})
    information = torch.finfo(dtype)
    torch.testing.assert_close(own, torchs, rtol=3 * information.eps, atol=information.smallest_normal)


LENGTHS = [8, 20, 4, 12]
"""Multiples of four, so that two ranks can share them."""


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_megatrons_and_so_is_its_gradient(ranks: int, dtype: torch.dtype) -> None:
    from megatron.core.models.common.embeddings.rope_utils import apply_rotary_pos_emb

    packed, positions = packed_bounds(LENGTHS)
    frequencies = 1 / 1e4 ** (torch.arange(0, 16, 2) / 16)
    angles = torch.outer(torch.arange(max(LENGTHS)).float(), frequencies)
    config = SimpleNamespace(apply_rope_fusion=False, rotary_interleaved=False, multi_latent_attention=False)
    for rank in range(ranks):
        mine = torch.from_numpy(packing.context_part(packed.cu_seqlens_q.numpy(), rank, ranks))
        group = SimpleNamespace(size=lambda: ranks, rank=lambda rank=rank: rank)
        values, wanted = torch.randn(2, len(mine), 3, 16, generator=torch.Generator().manual_seed(rank)).to(dtype)
        found = []
        for turned in (
            lambda x, mine=mine: rotate(x, rotation_of(positions[mine], frequencies, dtype)),
            lambda x, group=group: apply_rotary_pos_emb(
                x, torch.cat([angles, angles], 1)[:, None, None], config, packed.cu_seqlens_q, cp_group=group
            ),
        ):
            x = values.clone().requires_grad_()
            result = turned(x)
            result.backward(wanted)
            found.append((result.detach(), x.grad))
        (own, gradient), (megatrons, their_gradient) = found
        assert not torch.equal(own, values)
        assert torch.equal(own, megatrons)
        assert torch.equal(gradient, their_gradient)
