"""What computes a step: one rank's engine on Megatron-core or on torch alone, its critic, and what is saved of it."""
