"""What training needs to know of a decoder of any family: its sizes, and the few choices that families make."""

from dataclasses import dataclass

from trinity_bus.training.errors import ParallelError


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A dense decoder with RMS norms, rotary positions, grouped-query attention and a SwiGLU MLP."""

    layers: int
    hidden: int
    heads: int
    groups: int
    """Key-value heads; each serves ``heads / groups`` query heads."""
    head_dim: int
    intermediate: int
    vocabulary: int
    max_positions: int
    norm_epsilon: float
    rope_theta: float
    tied: bool
    """The output layer is the embedding."""
    qk_norm: bool
    """Queries and keys are normalized in each head."""
    qkv_bias: bool
    """The projections to queries, keys and values have biases."""
    llama3_rope_factor: float | None = None
    """Low frequencies of the rotary positions are divided by this, as in Llama 3.1; None: positions are not scaled."""

    def layers_per_stage(self, pipeline_parallel: int) -> int:
        """Layers that each stage of a pipeline holds.

        Raises:
            ParallelError: They cannot be distributed evenly.
        """
        if self.layers % pipeline_parallel:
            raise ParallelError(
                f"pipeline_parallel={pipeline_parallel} does not divide the model's {self.layers} layers"
            )
        return self.layers // pipeline_parallel

    def padded_vocabulary(self, tensor_parallel: int) -> int:
        """Return the vocabulary's size as Megatron holds it.

        Raises:
            ParallelError: The model cannot be split over so many ranks.
        """
        for name, size in (("heads", self.heads), ("key-value heads", self.groups), ("MLP width", self.intermediate)):
            if size % tensor_parallel:
                raise ParallelError(f"tensor_parallel={tensor_parallel} does not divide the model's {size} {name}")
        rows = -(-self.vocabulary // tensor_parallel)
        if rows * (tensor_parallel - 1) >= self.vocabulary:
            raise ParallelError(f"a vocabulary of {self.vocabulary} leaves ranks of {tensor_parallel} without a token")
        return rows * tensor_parallel
