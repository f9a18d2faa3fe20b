"""Links: process groups of two, over gloo or NCCL, that carry versions."""
