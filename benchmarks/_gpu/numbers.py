"""Our own backward passes and packed attention, in bfloat16 on the GPU, beside the same on the CPU.

Log-probabilities and entropy with a vocabulary of 151,936 beside float64; attention with rotary positions of packed
sequences beside float32. Each figure is the largest difference over the largest value.
"""

import argparse

import torch

from benchmarks._gpu.figures import Figures
from trinity_bus.training.megatron import layers, logprobs
from trinity_bus.training.megatron.core import PackedSeqParams

ROWS, HIDDEN, COLUMNS = 300, 64, 151_936
LENGTHS = (5, 129, 1, 512, 33)
HEADS, GROUPS, HEAD_DIM = 16, 4, 128
LIMIT = 0.02
"""Eight bits of a bfloat16, and some sums of them."""


def apart(found: torch.Tensor, right: torch.Tensor) -> float:
    """Return the largest difference, over the largest value."""
    return float((found.double().cpu() - right.double().cpu()).abs().max() / right.double().abs().max())


def of_logprobs(device: str, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    # The logits' standard deviation is 2.
    hidden, weight = (
        (torch.randn(rows, HIDDEN, generator=generator) * scale).bfloat16().to(device, dtype).requires_grad_()
        for rows, scale in ((ROWS, 2 / HIDDEN**0.5), (COLUMNS, 1.0))
    )
    targets = torch.randint(0, COLUMNS, (ROWS,), generator=generator).to(device)
    temperatures = (torch.rand(ROWS, generator=generator) + 0.5).to(device)
    values, entropy = logprobs.vocab_parallel_logprobs(
        hidden, weight, targets, vocabulary=COLUMNS, temperatures=temperatures
    )
    (values.sum() + 0.1 * entropy.sum()).backward()
    assert hidden.grad is not None
    assert weight.grad is not None
    return [values.detach(), entropy.detach(), hidden.grad, weight.grad]


def of_attention(device: str, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor(LENGTHS)
    bounds = torch.cat([torch.zeros(1), lengths.cumsum(0)]).int().to(device)
    leaves = [
        torch.randn(int(lengths.sum()), heads, HEAD_DIM, generator=generator).bfloat16().to(device, dtype)
        for heads in (HEADS, GROUPS, GROUPS)
    ]
    positions = torch.cat([torch.arange(length) for length in LENGTHS]).to(device)
    frequencies = (1e4 ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)).to(device)
    longest = max(LENGTHS)
    packed = PackedSeqParams(
        qkv_format="thd", cu_seqlens_q=bounds, cu_seqlens_kv=bounds, max_seqlen_q=longest, max_seqlen_kv=longest
    )
    placed = layers.PlacedSeqParams(**vars(packed), rotation=layers.rotation_of(positions, frequencies, dtype))
    module = layers.SDPAttention.__new__(layers.SDPAttention)
    torch.nn.Module.__init__(module)
    module.scale = module.context_group = None
    for leaf in leaves:
        leaf.requires_grad_()
    out = module(*leaves, packed_seq_params=placed)
    out.float().square().sum().backward()
    return [out.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def measure(options: argparse.Namespace, figures: Figures) -> None:
    for name, compute, right_dtype, of in (
        (
            "log-probabilities",
            of_logprobs,
            torch.float64,
            ("values", "entropy", "hidden states' gradient", "weight's gradient"),
        ),
        ("attention", of_attention, torch.float32, ("values", "queries", "keys", "values' gradient")),
    ):
        found, right = compute(options.device, getattr(torch, options.dtype)), compute("cpu", right_dtype)
        for what, here, there in zip(of, found, right, strict=True):
            figures.row(f"{name}: {what}", apart(here, there), "", better="lower", goal=LIMIT)
