"""What benchmarks of training train."""

from dataclasses import dataclass
from typing import Final

from benchmarks._options import REAL
from workers.demo.settings import GROUP_SIZE
from workers.demo.subjects import BATCH_SIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    name: str
    vocabulary: int
    hidden: int
    layers: int
    heads: int
    head_dim: int
    groups: int
    group_size: int
    prompt: int
    lengths: tuple[int, int]
    updates: int
    micro_batch_tokens: int
    repeats: int
    mlp: int = 3
    """Width of the layers between attentions, over ``hidden``."""
    overhead_goal: float = 1.1
    """Of Megatron's engine over the plain one, where little is padded."""

    @property
    def ragged(self) -> bool:
        return self.lengths[1] > 2 * self.lengths[0]


DEMO: Final = Workload(
    name="demo", vocabulary=16, hidden=128, layers=2, heads=4, head_dim=32, mlp=2, groups=BATCH_SIZE,
    group_size=GROUP_SIZE, prompt=6, lengths=(10, 10), updates=8, micro_batch_tokens=16_384, repeats=9
)  # fmt: skip

SMOLLM2: Final = Workload(
    name=REAL, vocabulary=49_152, hidden=576, layers=30, heads=9, head_dim=64, groups=8, group_size=8, prompt=40,
    lengths=(48, 72), updates=1, micro_batch_tokens=1024, repeats=3, overhead_goal=1.05
)  # fmt: skip
"""The real model, whose folder is given, and short samples such as those of arithmetic."""
