"""GPUs as their makers describe them, and what of that programs reach. Pure."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True)
class Gpu:
    memory_gib: float
    tflops: float  # 10^12 operations a second on dense bfloat16 matrices
    bandwidth_tb_s: float  # 10^12 bytes a second from its memory


# NVIDIA's data sheets: SXM modules where there are any, without sparsity
GPUS: Final = MappingProxyType(
    {
        "A100": Gpu(80, 312, 2.04),
        "H100": Gpu(80, 989, 3.35),
        "H200": Gpu(141, 989, 4.8),
        "B200": Gpu(180, 2250, 8.0),
        "L40S": Gpu(48, 362, 0.864),
    }
)

# Of the operations a second, in a training step. Narayanan et al., arXiv:2104.04473, table 1, reach 0.44 to 0.52.
TRAINING_SHARE: Final = 0.4
# Of the operations a second, where a batch of tokens is computed. Pope et al., arXiv:2211.05102, section 4, reach up
# to 0.76 for prompts, less where matrices are smaller.
PREFILL_SHARE: Final = 0.4
# Of the bytes a second, where one token is drawn for each sequence. Assumed: not measured on a GPU yet.
BANDWIDTH_SHARE: Final = 0.6
