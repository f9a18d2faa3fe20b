from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder with RMS norms, rotary positions, grouped-query attention, and SwiGLU MLPs: one a layer, or experts."""

    layers: int
    hidden: int
    heads: int
    # Key-value heads; each serves ``heads / groups`` query heads
    groups: int
    head_dim: int
    # Width of a layer's MLP; where there are experts, of each of them
    intermediate: int
    vocabulary: int
    max_positions: int
    norm_epsilon: float
    rope_theta: float
    # The output layer is the embedding
    tied: bool
    # Queries and keys are normalized in each head
    qk_norm: bool
    # The projections to queries, keys and values have biases
    qkv_bias: bool
    # Low frequencies of the rotary positions are divided by this, as in Llama 3.1; None: positions are not scaled.
    llama3_rope_factor: float | None = None
    # In each layer, of which a router chooses some for each token; 0: the model is dense
    experts: int = 0
    experts_per_token: int = 0
    # The weights of the chosen experts add up to 1
    normalized_routing: bool = True

    def padded_vocabulary(self, tensor_parallel: int) -> int:
        """Return the vocabulary's size as Megatron holds it: a multiple of the ranks that it is split over."""
        return -(-self.vocabulary // tensor_parallel) * tensor_parallel
