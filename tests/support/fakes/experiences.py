"""Experiences to train on, made up."""

from collections.abc import Sequence

import numpy as np

from benchmarks._records import named_group
from schemas import ExperienceGroup


def make_group(
    *,
    seed: int = 0,
    rewards: Sequence[float] = (0.0, 1.0, 0.5, 0.0),
    vocabulary: int = 32,
    prompt: int = 3,
    longest: int = 9,
    version: int = 0,
    task_id: str = "task",
    attempt: int = 1,
    batch_id: str = "batch",
) -> ExperienceGroup:
    """A group of random samples with plausible logprobs; the second response token is masked where there is one."""
    rng = np.random.default_rng(seed)
    n = len(rewards)
    responses = rng.integers(1, longest, n)
    lengths = (responses + prompt).astype(np.int32)
    total = int(responses.sum())
    mask = np.ones(total, np.bool_)
    starts = np.concatenate([[0], np.cumsum(responses)[:-1]])
    mask[[start + 1 for start, length in zip(starts, responses, strict=True) if length > 1]] = False
    return ExperienceGroup(
        **named_group(task_id, batch_id, attempt=attempt),
        tokens=rng.integers(0, vocabulary, int(lengths.sum())).astype(np.int32),
        lengths=lengths,
        prompt_lengths=np.full(n, prompt, np.int32),
        logprobs=(-np.log(vocabulary) + rng.normal(0, 0.1, total)).astype(np.float32),
        mask_bits=np.packbits(mask),
        rewards=np.asarray(rewards, np.float32),
        run_ids=np.arange(n, dtype=np.int32),
        versions=np.array([[i, 0, version] for i in range(n)], np.int32),
    )
