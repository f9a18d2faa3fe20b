"""Links: versions sent by the trainer to each member, over gloo or NCCL."""
