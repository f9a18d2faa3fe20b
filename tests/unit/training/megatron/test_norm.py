"""The norm's own backward pass, against torch's."""

import pytest
import torch

from trinity_bus.training.megatron.norm import rms_norm

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
