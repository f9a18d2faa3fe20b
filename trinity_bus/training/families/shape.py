from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

type Size = Annotated[int, Field(ge=1, le=1 << 31)]
type Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(strict=True))
class ModelShape:
    """A decoder with RMS norms, rotary positions, grouped-query attention, and SwiGLU MLPs: one a layer, or experts."""

    layers: Size
    hidden: Size
    heads: Size
    # Key-value heads; each serves ``heads / groups`` query heads
    groups: Size
    head_dim: Size
    # Width of a layer's MLP; where there are experts, of each of them
    intermediate: Size
    vocabulary: Size
    max_positions: Size
    norm_epsilon: Positive
    rope_theta: Positive
    # The output layer is the embedding
    tied: bool
    # Queries and keys are normalized in each head
    qk_norm: bool
    # The projections to queries, keys and values have biases
    qkv_bias: bool
    # Low frequencies of the rotary positions are divided by this, as in Llama 3.1; None: positions are not scaled.
    llama3_rope_factor: Positive | None = None
    # In each layer, of which a router chooses some for each token; 0: the model is dense
    experts: Annotated[int, Field(ge=0, le=1 << 31)] = 0
    experts_per_token: Annotated[int, Field(ge=0)] = 0
    # The weights of the chosen experts add up to 1
    normalized_routing: bool = True

    def padded_vocabulary(self, tensor_parallel: int) -> int:
        """Return the vocabulary's size as Megatron holds it: a multiple of the ranks that it is split over."""
        return -(-self.vocabulary // tensor_parallel) * tensor_parallel
