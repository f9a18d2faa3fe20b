"""Rotary positions of packed sequences, against Megatron's own of the same pack, bit for bit.

FAKE: a group of ranks that share sequences, of which there is only the number and whose turn it is.
"""

from types import SimpleNamespace

import pytest
import torch

from tests.support.training.samples import packed_bounds
from trinity_bus.training.megatron.rotary import rotate, rotation_of
from trinity_bus.training.steps import packing

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
