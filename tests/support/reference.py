"""What transformers computes with the weights that an engine is said to serve."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch


def likely(model: Any, prompt: Sequence[int], token_ids: Sequence[int], temperature: float = 1.0) -> torch.Tensor:
    """[tokens] log-probabilities that a model, or that of a folder, gives to what follows a prompt."""
    from transformers import AutoModelForCausalLM

    if isinstance(model, Path):
        model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *token_ids]])).logits[0, len(prompt) - 1 : -1]
    found: torch.Tensor = torch.log_softmax(logits / temperature, -1)[range(len(token_ids)), list(token_ids)]
    return found


def mismatch(
    model: Any, prompt: Sequence[int], token_ids: Sequence[int], logprobs: Sequence[float], temperature: float = 1.0
) -> torch.Tensor:
    """[tokens] how far an engine's log-probabilities are from those."""
    return (likely(model, prompt, token_ids, temperature) - torch.tensor(logprobs)).abs()
