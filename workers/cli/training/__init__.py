"""Training: commands about what a trainer makes, which is steps, checkpoints, versions and models."""
