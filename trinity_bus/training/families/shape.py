"""What training needs to know of a decoder of any family: its sizes, and the few choices that families make."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder with RMS norms, rotary positions, grouped-query attention, and SwiGLU MLPs: one a layer, or experts."""

    layers: int
    hidden: int
    heads: int
    groups: int
    """Key-value heads; each serves ``heads / groups`` query heads."""
    head_dim: int
    intermediate: int
    """Width of a layer's MLP; where there are experts, of each of them."""
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
    experts: int = 0
    """In each layer, of which a router chooses some for each token; 0: the model is dense."""
    experts_per_token: int = 0
    normalized_routing: bool = True
    """The weights of the chosen experts add up to 1."""

    def padded_vocabulary(self, tensor_parallel: int) -> int:
        """Return the vocabulary's size as Megatron holds it: a multiple of the ranks that it is split over."""
        return -(-self.vocabulary // tensor_parallel) * tensor_parallel
