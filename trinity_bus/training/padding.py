import torch

from trinity_bus.training.packing import PackedArrays


def padded(arrays: PackedArrays, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sequences of a micro-batch as rows, and where in them its tokens are; both [sequences, longest].

    What is computed for rows, at the places of the second, is as flat as the arrays. Padding comes after each sequence,
    where attention that is causal never looks.
    """
    real = torch.arange(arrays.longest) < torch.from_numpy(arrays.bounds).diff()[:, None]
    tokens = torch.zeros(real.shape, dtype=torch.long)
    tokens[real] = torch.from_numpy(arrays.tokens)
    return tokens.to(device), real.to(device)
