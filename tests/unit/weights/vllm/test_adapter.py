"""What an explorer refuses to serve as an adapter, before anything has happened."""

import pytest
import torch

from trinity_bus.weights.errors import WeightTransferError

pytestmark = pytest.mark.filterwarnings("ignore")

A, B = "layers.0.q_proj.lora_A.weight", "layers.0.q_proj.lora_B.weight"


def test_pairs_of_one_rank_are_an_adapter_and_nothing_else_is() -> None:
    from trinity_bus.weights.vllm.adapter import rank_of

    pair = {A: torch.zeros(2, 8), B: torch.zeros(8, 2)}
    assert rank_of(pair, 2) == 2
    for odd, why in (
        ({}, "pairs"),
        ({A: pair[A]}, "pairs"),
        ({**pair, "layers.0.q_proj.weight": torch.zeros(8, 8)}, "pairs"),
        ({A: pair[A], B: torch.zeros(8, 3)}, "one rank"),
        ({A: torch.zeros(4, 8), B: torch.zeros(8, 4)}, "at most 2"),
    ):
        with pytest.raises(WeightTransferError, match=why):
            rank_of(odd, 2)
