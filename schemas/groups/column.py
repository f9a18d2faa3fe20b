"""The columns of an experience group, as the wire and its description have them.

A group without the optional ones is what it was before there were any, byte for byte, and whoever knows none of them
passes over them. Rows lie in the order of the samples; what they count is the column's ``length``::

    turns        any number of each sample, found by the sample numbers in ``turn_starts``
    samples      one of each
    responses    one of each response token
    tokens       one of each token
    kept         as many of each sample as ``kept_sizes`` says

``responses`` is ``sum(lengths - prompt_lengths)``.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    dtype_name: str  # NumPy's name, with the byte order
    # the shape of one row, empty for a buffer of one dimension; a word stands for a size that each group has
    tail: tuple[int | str, ...]
    length: str
    meaning: str

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.dtype_name)


MAX_TURNS = 65_536  # of all samples of a group
MAX_ROUTED_LAYERS = 1024
MAX_ROUTED_EXPERTS = 256  # of a layer, and so those that a token may be given to: their numbers are bytes

# the buffers of a group, in the order in which they are written
COLUMNS = (
    Column("tokens", "<i4", (), "sum(lengths)", "prompt and response token ids, sample after sample"),
    Column("lengths", "<i4", (), "samples", "tokens per sample"),
    Column("prompt_lengths", "<i4", (), "samples", "how many of them are prompt"),
    Column("logprobs", "<f4", (), "responses", "of each response token, under the policy that drew it"),
    Column("mask_bits", "|u1", (), "ceil(responses / 8)", "a bit per response token, first highest; 1 is trained on"),
    Column("rewards", "<f4", (), "samples", "NaN where the workflow gave none"),
    Column("run_ids", "<i4", (), "samples", "0 .. repeat_times - 1; samples with the same are one run"),
    Column("versions", "<i4", (3,), "spans", "(sample, first response token, model version): who drew what"),
)

# in the order in which they are written, those that there are
OPTIONAL_COLUMNS = (
    Column("turn_starts", "<i4", (2,), "turns", "(sample, first response token) of each turn"),
    Column("turn_rewards", "<f4", (), "turns", "of each turn; NaN where the workflow gave none"),
    Column(
        "sampling",
        "<f4",
        (4,),
        "samples",
        "temperature, top_p (1: all), top_k (0: all), min_p (0: all); all NaN: nobody knows; the last three: "
        "something else limited it too",
    ),
    Column("teacher_logprobs", "<f4", (), "responses", "of each response token, under a teacher; NaN: not asked"),
    Column("routes", "|u1", ("layers", "k"), "tokens", "the experts that each MoE layer's router chose for each token"),
    Column("kept_sizes", "<i4", (), "samples", "bytes of each sample's sets of kept tokens; 0: it has none"),
    Column("kept", "|u1", (), "kept", "from which tokens top-p, top-k and min-p had each response token drawn"),
)
