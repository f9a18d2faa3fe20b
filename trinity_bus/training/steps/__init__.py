"""What a step trains on, from a manifest's experiences to micro-batches. No module here imports torch."""
