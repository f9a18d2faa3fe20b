"""Root mean square norm (Zhang & Sennrich, arXiv:1910.07467), with a backward pass of its own on CPUs.

There torch differentiates it operation by operation, each a pass over memory and a tensor that is kept; CUDA has one
kernel for it. With ``r = 1 / sqrt(mean(x^2) + eps)``, ``n = x r`` and the gradient ``g`` of ``y = n w``::

    d x = r (g w - n mean(g w n))        d w = sum over tokens of g n
"""

from typing import Any

import torch

from trinity_bus.training.megatron.core import TransformerConfig


class Norm(torch.nn.RMSNorm):  # type: ignore[misc]  # torch is not followed by mypy
    """torch's, with the signature that Megatron calls; Megatron's own wrapper refuses to be split by tokens."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps)
        # Gradients of what sees a part of the tokens are summed over the ranks that see the others.
        self.weight.sequence_parallel = config.sequence_parallel

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.is_cuda:
            return super().forward(x)
        return rms_norm(x, self.weight, self.eps)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Do what ``torch.nn.functional.rms_norm`` does; can be differentiated once.

    In float32 and float64 it is the same bit for bit. In bfloat16 and float16 each operation is rounded here, and
    results differ by up to three times the dtype's ``eps``, relatively.
    """
    result: torch.Tensor = _RMSNorm.apply(x, weight, epsilon)
    return result


class _RMSNorm(torch.autograd.Function):  # type: ignore[misc]  # torch is not followed by mypy
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        inverse = x.square().mean(-1, keepdim=True).add_(epsilon).rsqrt_()
        normal = x * inverse
        ctx.save_for_backward(normal, inverse, weight)
        return normal * weight

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]  # torch is not followed by mypy
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        normal, inverse, weight = ctx.saved_tensors
        by_normal = gradient * normal
        means = by_normal.matmul(weight).div_(len(weight)).unsqueeze(-1)
        for_x = (gradient * weight).addcmul_(normal, means, value=-1).mul_(inverse)
        return for_x, by_normal.flatten(0, -2).sum(0), None
