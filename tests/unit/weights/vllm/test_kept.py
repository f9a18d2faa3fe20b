"""From which tokens each was drawn, as the sampler of an engine on a CPU tells it."""

from typing import NamedTuple

import pytest
import torch

from trinity_bus.weights.vllm.kept import telling_kept


class Told(NamedTuple):
    logprob_token_ids: torch.Tensor
    logprobs: torch.Tensor
    selected_token_ranks: torch.Tensor


def gather(logprobs: torch.Tensor, asked: int, drawn: torch.Tensor) -> Told:
    """FAKE: vLLM's own, which is asked about the drawn tokens alone."""
    assert asked == 0
    return Told(drawn[:, None].to(torch.int32), logprobs.gather(1, drawn[:, None]), torch.ones(len(drawn)))


def told_of(sets: list[list[int]], asked: int, vocabulary: int = 8) -> tuple[Told, list[list[int]]]:
    """What is told of rows in which these have a probability, of which the last is drawn; and the sets in it."""
    logprobs = torch.full((len(sets), vocabulary), -torch.inf)
    for row, ids in enumerate(sets):
        logprobs[row, ids] = torch.arange(len(ids)) - 9.0
    told = telling_kept(gather)(logprobs, asked, token_ids=torch.tensor([ids[-1] for ids in sets]))
    assert [int(row[0]) for row in told.logprob_token_ids] == [ids[-1] for ids in sets]
    assert told.logprobs[:, 0].tolist() == [len(ids) - 10.0 for ids in sets]
    rows = zip(told.logprob_token_ids[:, 1:], told.logprobs[:, 1:] > -torch.inf, strict=True)
    return told, [each[is_kept].tolist() for each, is_kept in rows]


def test_rows_have_those_that_were_kept_and_are_as_long_as_the_longest() -> None:
    told, sets = told_of([[2, 7], [0], [1, 3, 4]], asked=5)
    assert sets == [[2, 7], [0], [1, 3, 4]]
    assert told.logprobs.shape == (3, 4)
    assert told.logprobs[2].tolist() == [-7.0, -9.0, -8.0, -7.0]


def test_of_a_row_with_as_many_as_were_asked_about_or_more_nobody_knows() -> None:
    everything = list(range(8))
    told, sets = told_of([everything, [2, 7], [1, 3, 4]], asked=3)
    assert sets == [[], [2, 7], []]
    assert told.logprobs.shape == (3, 3), "neighbours without a limit make nobody's row longer"
    assert told_of([everything, [2]], asked=8)[1] == [everything, [2]], "there are no others"
    assert told_of([everything], asked=3)[0].logprobs.shape == (1, 1)


@pytest.mark.parametrize("rows", [0, 1])
def test_who_asks_about_none_is_told_of_the_drawn_tokens_alone(rows: int) -> None:
    told = telling_kept(gather)(torch.zeros(rows, 4), 0, torch.zeros(rows, dtype=torch.int64))
    assert told.logprobs.shape == (rows, 1)
