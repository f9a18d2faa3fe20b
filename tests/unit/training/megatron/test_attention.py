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
