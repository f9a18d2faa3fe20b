"""What benchmarks of training train."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A model and a batch."""

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

    @property
    def ragged(self) -> bool:
        """Whether much of a padded batch is padding."""
        return self.lengths[1] > 2 * self.lengths[0]
