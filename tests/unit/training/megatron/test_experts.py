"""Experts as one product of groups against the loop over them."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it

from trinity_bus.config import TrainerSettings
from trinity_bus.training.families import ModelShape
from trinity_bus.training.layout import Layout
from trinity_bus.training.megatron.layers import Experts, multiply
from trinity_bus.training.megatron.model import transformer_config

COUNTS = [[3, 0, 4, 1], [0, 0, 8, 0], [2, 2, 2, 2], [0, 5, 0, 0], [0, 0, 0, 0]]
TOLERANCES = {torch.float32: (1e-5, 1e-6), torch.bfloat16: (2e-2, 2e-2)}


class OneGroup:
    """As Megatron's groups: experts are not split."""

    class expt_tp:  # noqa: N801 - its name
        size = staticmethod(lambda: 1)


def one_by_one(
    tokens: torch.Tensor, first: torch.Tensor, second: torch.Tensor, counts: list[int], weights: torch.Tensor
) -> torch.Tensor:
    """What Megatron's loop computes."""
    made = []
    for number, (rows, weight) in enumerate(zip(tokens.split(counts), weights.split(counts), strict=True)):
        gate, up = F.linear(rows, first[number]).chunk(2, -1)
        made.append(F.linear((F.silu(gate) * up * weight[:, None]).to(rows.dtype), second[number]))
    return torch.cat(made)


@pytest.fixture(params=TOLERANCES, ids=str)
def experts(request: pytest.FixtureRequest, layout: Layout) -> Experts:
    shape = ModelShape(
        layers=1, hidden=16, heads=2, groups=1, head_dim=8, intermediate=24, vocabulary=32, max_positions=64,
        norm_epsilon=1e-6, rope_theta=1e4, tied=False, qk_norm=True, qkv_bias=False, experts=4, experts_per_token=2,
    )  # fmt: skip
    config = transformer_config(shape, layout, request.param, TrainerSettings(), local=True)
    made = Experts(4, config, OneGroup)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 4)
    return made


@pytest.mark.parametrize("counts", COUNTS, ids=str)
def test_they_compute_what_one_after_the_other_does(experts: Experts, counts: list[int]) -> None:
    dtype = experts.linear_fc1.dtype
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randn(sum(counts), 16, generator=generator).to(dtype).requires_grad_()
    weights = torch.rand(sum(counts), generator=generator).requires_grad_()
    upstream = torch.randn(sum(counts), 16, generator=generator).to(dtype)
    inputs = (tokens, weights, experts.linear_fc1, experts.linear_fc2)

    def with_gradients(output: torch.Tensor) -> list[torch.Tensor]:
        return [output.detach(), *torch.autograd.grad(output, inputs, upstream)]

    ours = with_gradients(experts(tokens, torch.tensor(counts), weights)[0])
    theirs = with_gradients(one_by_one(tokens, experts.linear_fc1, experts.linear_fc2, counts, weights))
    rtol, atol = TOLERANCES[dtype]
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=rtol, atol=atol)
    for gradient in ours[3:]:
        assert not gradient[[number for number, count in enumerate(counts) if not count]].any()


def test_an_expert_without_tokens_gets_no_gradient_whatever_a_kernel_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one does on some GPUs: it does not write where there are no rows."""
    genuine = F.grouped_mm

    def leaving(a: torch.Tensor, b: torch.Tensor, *, offs: torch.Tensor) -> torch.Tensor:
        product = genuine(a, b, offs=offs)
        if b.dim() == 2:
            product[offs.diff(prepend=offs.new_zeros(1)) == 0] = torch.nan
        return product

    monkeypatch.setattr("trinity_bus.training.megatron.layers.grouped_mm", leaving)
    weights = torch.ones(3, 8, 8, requires_grad=True)
    multiply(torch.ones(5, 8), weights, torch.tensor([2, 2, 5], dtype=torch.int32)).backward(torch.ones(5, 8))
    assert weights.grad is not None
    assert weights.grad[:, 0, 0].tolist() == [2.0, 0.0, 3.0]
