"""Log-probabilities and entropy from the last hidden states, whose vocabulary is split over tensor-parallel ranks.

With hidden states ``h``, the output layer ``W``, logits ``x = W h`` at the temperature ``T`` of their token,
``z = x / T`` and ``p = softmax(z)``::

    log p(t)  = z_t - logsumexp(z)                 d log p(t) / d x_j = (1[j = t] - p_j) / T
    H         = logsumexp(z) - sum_j p_j z_j       d H / d x_j        = -p_j (log p_j + H) / T

Where only some tokens were kept to be drawn from, ``z`` is ``-inf`` of all others: ``p`` is then the softmax over those
that were kept, and both values and gradients are of that distribution.

Both passes go through the tokens in chunks: there are never logits of more than one. Saved for the backward pass are
the hidden states and two numbers a token; the logits are computed again there, unless one chunk is all there is. Rows
of ``W`` at or beyond the vocabulary's size are padding: they have probability zero and gradient zero.
"""

from typing import Any

import torch
import torch.distributed as dist

from trinity_bus.training.kept_rows import KeptRows
from trinity_bus.training.steps import packing


def _rows(columns: int, *, on_gpu: bool) -> int:
    return max(1, packing.LOGITS_AT_ONCE * (packing.ON_GPU if on_gpu else 1) // columns)


def _logits(hidden: torch.Tensor, output: torch.Tensor, outside: torch.Tensor | None) -> torch.Tensor:
    logits = hidden @ output.T
    return logits if outside is None else logits.masked_fill_(outside, -torch.inf)


def _scaled(logits: torch.Tensor, temperatures: torch.Tensor | None) -> torch.Tensor:
    # In float32, divided by the temperature of each row; a view where there is nothing to do
    scaled = logits.float()
    return scaled if temperatures is None else scaled / temperatures[:, None]


def _of(temperatures: torch.Tensor | None, chunk: slice) -> torch.Tensor | None:
    return None if temperatures is None else temperatures[chunk]


class _VocabParallelLogprobs(torch.autograd.Function):  # type: ignore[misc]  # torch is not followed by mypy
    @staticmethod
    def forward(  # noqa: PLR0917 - torch calls it by position
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        targets: torch.Tensor,
        vocabulary: int,
        temperatures: torch.Tensor | None,
        kept: KeptRows | None,
        group: dist.ProcessGroup | None,
        sums: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        first = len(weight) * (group.rank() if group is not None else 0)
        columns = min(len(weight), vocabulary - first)
        rows, output = _rows(columns, on_gpu=hidden.is_cuda), weight[:columns]
        local = targets - first
        mine = (local >= 0) & (local < columns)
        local = local.clamp(0, columns - 1)
        logprobs, entropies, log_sums = (hidden.new_empty(len(hidden), dtype=torch.float32) for _ in range(3))
        saved = None
        for start in range(0, len(hidden), rows):
            chunk = slice(start, start + rows)
            outside = None if kept is None else kept.outside(chunk, first, columns)
            logits = _logits(hidden[chunk], output, outside)
            saved = logits if len(hidden) <= rows and any(ctx.needs_input_grad) else None
            z = _scaled(logits, _of(temperatures, chunk))
            highest = z.amax(1)
            if group is not None:
                dist.all_reduce(highest, op=dist.ReduceOp.MAX, group=group)
            z = z - highest[:, None]
            chosen = torch.where(mine[chunk], z.gather(1, local[chunk, None])[:, 0], 0.0)
            p = z.exp()
            if outside is not None:
                # Where p is 0, p log p is.
                z.masked_fill_(outside, 0.0)
            of_ranks = torch.stack([p.sum(1), p.mul_(z).sum(1), chosen])
            if group is not None:
                dist.all_reduce(of_ranks, group=group)
            total, weighted, chosen = of_ranks
            log_sum = total.log()
            logprobs[chunk] = chosen - log_sum
            entropies[chunk] = log_sum - weighted / total
            log_sums[chunk] = log_sum + highest
        ctx.save_for_backward(hidden, weight, saved, local, mine, entropies, log_sums, temperatures)
        ctx.first, ctx.columns, ctx.rows, ctx.kept, ctx.sums = first, columns, rows, kept, sums
        ctx.set_materialize_grads(False)
        return logprobs, entropies

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]  # torch is not followed by mypy
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        for_logprobs, for_entropies = gradients
        hidden, weight, saved, local, mine, entropies, log_sums, temperatures = ctx.saved_tensors
        output = weight[: ctx.columns]
        for_hidden = torch.empty_like(hidden)
        for_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] and ctx.sums is None else None
        sums = for_weight if ctx.sums is None else ctx.sums
        for start in range(0, len(hidden), ctx.rows):
            chunk = slice(start, start + ctx.rows)
            logits = saved
            if logits is None:
                outside = None if ctx.kept is None else ctx.kept.outside(chunk, ctx.first, ctx.columns)
                logits = _logits(hidden[chunk], output, outside)
            logp = _scaled(logits, _of(temperatures, chunk)) - log_sums[chunk, None]
            del logits
            p = logp.exp()
            # Both gradients are p times something, but for the target's own: it is added last.
            factor = torch.zeros_like(log_sums[chunk, None]) if for_logprobs is None else -for_logprobs[chunk, None]
            if for_entropies is not None:
                surprise = logp.add_(entropies[chunk, None])
                if ctx.kept is not None:
                    # p log p is 0 where p is, though log p is -inf.
                    surprise.masked_fill_(p == 0, 0.0)
                factor = surprise.mul_(-for_entropies[chunk, None]).add_(factor)
            gradient = p.mul_(factor)
            if for_logprobs is not None:
                own = torch.where(mine[chunk], for_logprobs[chunk], 0.0)
                gradient.scatter_add_(1, local[chunk, None], own[:, None])
            if temperatures is not None:
                gradient.div_(temperatures[chunk, None])
            gradient = gradient.to(hidden.dtype)
            torch.mm(gradient, output, out=for_hidden[chunk])
            if sums is not None:
                sums[: ctx.columns].addmm_(gradient.T, hidden[chunk])
        return for_hidden, for_weight, None, None, None, None, None, None


def vocab_parallel_logprobs(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    *,
    vocabulary: int,
    temperatures: torch.Tensor | None = None,
    kept: KeptRows | None = None,
    group: dist.ProcessGroup | None = None,
    sums: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability of each target, and the entropy of each distribution, [tokens]; can be differentiated once.

    The gradient for ``hidden`` is of this rank's part of the vocabulary alone: those of all ranks are to be summed.

    Args:
        hidden: [tokens, hidden], any float type; the same on all ranks.
        weight: [columns, hidden] of the output layer, this rank's part of the vocabulary, of the same type.
        targets: [tokens] token ids, int64, the same on all ranks.
        vocabulary: True size, without padding.
        temperatures: [tokens] what the logits of each are divided by; None: by 1.
        kept: From which tokens each target was drawn, itself among them; None: from all.
        group: The tensor-parallel ranks.
        sums: Of the weight's shape and type: what its gradient is added to, in place of one of its own.
    """
    result: tuple[torch.Tensor, torch.Tensor] = _VocabParallelLogprobs.apply(
        hidden, weight, targets, vocabulary, temperatures, kept, group, sums
    )
    return result
