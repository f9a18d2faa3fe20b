"""versions that members take from the trainer's server, and from each other, whatever carries the bytes."""
