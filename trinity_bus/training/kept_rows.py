"""The softmax over the tokens that a sampler has kept: which of a row's logits take no part in it.

With ``K``, the tokens from which top-p, top-k and min-p had a token drawn, and ``z``, its logits at its temperature::

    log p(t | K) = z_t - logsumexp of z_j over j in K        H = -sum of p(j | K) log p(j | K) over j in K

All that a step computes of a token is of this distribution: what is recomputed, the ratio, the reference and the
entropy. ``K`` is the sampler's and stays what it was, whatever the weights are then. Of a single token ``p`` is 1, so
the ratio is, and nothing is learned from it. Source: DeepSeek-AI, "DeepSeek-V3.2", arXiv:2512.02556, 3.1.
"""

import numpy as np
import torch

from schemas.groups.kept import KeptTokens


class KeptRows:
    """From which tokens the target of each row was drawn, for ``device``."""

    def __init__(self, kept: KeptTokens, device: torch.device) -> None:
        self._counts, self._ids = kept
        self._starts = np.concatenate([[0], np.cumsum(self._counts)])
        self._device = device

    def outside(self, rows: slice, first: int, columns: int) -> torch.Tensor | None:
        """Return [rows, columns], True where a logit takes no part; None where all do, on all ranks alike.

        The columns are of the token ids from ``first`` on.
        """
        counts = self._counts[rows]
        if not counts.any():
            return None
        begin, end, _ = rows.indices(len(self._counts))
        ids = self._ids[self._starts[begin] : self._starts[end]] - first
        mine = (ids >= 0) & (ids < columns)
        at = torch.from_numpy(np.stack([np.repeat(np.arange(len(counts)), counts)[mine], ids[mine]])).to(self._device)
        outside = torch.from_numpy(counts > 0).to(self._device)[:, None].repeat(1, columns)
        outside[at[0], at[1]] = False
        return outside
