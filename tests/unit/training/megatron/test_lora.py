"""What is left of an adapter when it is merged into bfloat16."""

import torch

from trinity_bus.training.megatron.lora import dithered


def made(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights as bfloat16 has them, and what an adapter adds: mostly less than they can show."""
    generator = torch.Generator().manual_seed(seed)
    weight = (torch.randn(96, 160, generator=generator) * 0.05).bfloat16()
    adapter = torch.randn(96, 4, generator=generator) @ torch.randn(4, 160, generator=generator)
    return weight.float(), adapter * 1e-5


def test_what_is_added_arrives_though_most_of_it_is_smaller_than_the_step_between_two_numbers() -> None:
    weight, adapter = made(0)
    merged = dithered(weight + adapter, torch.bfloat16)
    assert merged.dtype is torch.bfloat16
    nearest = (weight + adapter).bfloat16().float() - weight
    arrived = merged.float() - weight
    strength = (adapter * adapter).sum()
    assert (nearest * adapter).sum() < 0.6 * strength, "else the example is of no use"
    assert abs((arrived * adapter).sum() / strength - 1) < 0.1


def test_each_weight_becomes_one_of_its_two_neighbours_and_stays_where_nothing_is_added() -> None:
    for seed in range(20):
        weight, adapter = made(seed)
        assert torch.equal(dithered(weight, torch.bfloat16).float(), weight)
        whole = weight + adapter
        merged = dithered(whole, torch.bfloat16).float()
        below = (whole.view(torch.int32) & -0x10000).view(torch.float32)
        above = ((whole.view(torch.int32) & -0x10000) + 0x10000).view(torch.float32)
        assert ((merged == below) | (merged == above)).all()
        # What has not changed is published as before.
        later = whole.clone()
        later[::2] += 1e-3
        assert torch.equal(dithered(later, torch.bfloat16).float()[1::2], merged[1::2])


def test_other_types_are_rounded_as_torch_does() -> None:
    weight, adapter = made(0)
    assert torch.equal(dithered(weight + adapter, torch.float32), weight + adapter)
    assert torch.equal(dithered(weight + adapter, torch.float16), (weight + adapter).half())


def test_what_is_not_finite_is_not_hidden() -> None:
    bits = torch.tensor([0x7FFFFFFF, -1, 0x7F800000, -0x800000], dtype=torch.int32).repeat(5)
    rounded = dithered(bits.view(torch.float32), torch.bfloat16)
    assert torch.equal(rounded.isnan(), bits.view(torch.float32).isnan())
    assert torch.equal(rounded.isinf(), bits.view(torch.float32).isinf())
