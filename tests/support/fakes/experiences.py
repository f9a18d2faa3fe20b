"""Experiences to train on, made up."""

from collections.abc import Collection, Sequence

import numpy as np
from msgspec.structs import replace

from benchmarks._records import named_group
from schemas import ExperienceGroup
from schemas.groups.kept import KeptTokens, encode_kept


def kept_of(*sets: Collection[int]) -> bytes:
    """From which tokens each response token was drawn; nothing where nobody knows."""
    ids = np.array([token for each in sets for token in sorted(each)], np.int64)
    return encode_kept(KeptTokens(np.array([len(each) for each in sets], np.int64), ids))


def drawn_from_some(
    group: ExperienceGroup, *, vocabulary: int, seed: int = 0, sampling: Sequence[float] = (1, 0.9, 0, 0)
) -> ExperienceGroup:
    """The same, each token that is trained on drawn from 1 to 6 that were kept; the last sample from all."""
    rng = np.random.default_rng(seed)
    sets = []
    for sample in list(group.samples())[:-1]:
        response = sample.tokens[sample.prompt_length :].tolist()
        others = (rng.integers(0, vocabulary, rng.integers(0, 6)).tolist() for _ in response)
        of_each = zip(response, others, sample.mask.tolist(), strict=True)
        sets.append(kept_of(*({token, *beside} if own else () for token, beside, own in of_each)))
    return replace(
        group,
        kept=np.frombuffer(b"".join(sets), np.uint8),
        kept_sizes=np.array([*map(len, sets), 0], np.int32),
        sampling=np.array([*[sampling] * len(sets), [1, 1, 0, 0]], np.float32),
    )


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
