"""How much each part does: ``tiny`` on a CPU within seconds, the others by the memory of the GPUs."""

from dataclasses import dataclass

from benchmarks._tiny_model import TINY, TinyShape
from benchmarks._workload import Workload

LARGE_GIB = 70
"""Memory of a GPU from which on it is given the large size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    edges: tuple[int, ...]
    training: Workload
    engine: TinyShape
    requests: int
    tokens: int
    transfer_mib: int
    bucket_mib: int
    rounds: int


def _training(name: str, *, hidden: int, layers: int, vocabulary: int, tokens: int, groups: int) -> Workload:
    """Return a model with heads of 128, as kernels for GPUs like them, and a batch of samples of one length."""
    return Workload(
        name=name, vocabulary=vocabulary, hidden=hidden, layers=layers, heads=hidden // 128, head_dim=128,
        groups=groups, group_size=8, prompt=tokens // 8, lengths=(tokens, tokens), updates=1,
        micro_batch_tokens=8 * tokens, repeats=5
    )  # fmt: skip


def _engine(*, hidden: int, layers: int) -> TinyShape:
    return TinyShape(
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 128,
        num_key_value_heads=2,
        head_dim=128,
        vocab_size=16_384,
        initializer_range=0.05,
    )


SIZES = {
    "tiny": Size(
        edges=(256,),
        training=_training("tiny", hidden=256, layers=2, vocabulary=512, tokens=32, groups=2),
        engine=TINY, requests=2, tokens=8, transfer_mib=8, bucket_mib=2, rounds=1
    ),
    # 0.23 and about 1.4 thousand million parameters, of 18 bytes each while they are trained.
    "small": Size(
        edges=(4096, 8192),
        training=_training("small", hidden=1024, layers=16, vocabulary=32_768, tokens=512, groups=8),
        engine=_engine(hidden=1024, layers=8), requests=32, tokens=64, transfer_mib=512, bucket_mib=64, rounds=3
    ),
    "large": Size(
        edges=(4096, 8192, 16_384),
        training=_training("large", hidden=2048, layers=28, vocabulary=32_768, tokens=1024, groups=8),
        engine=_engine(hidden=2048, layers=16), requests=64, tokens=128, transfer_mib=2048, bucket_mib=64, rounds=3
    ),
}  # fmt: skip


def size_for(gib: float) -> str:
    return "large" if gib >= LARGE_GIB else "small"
