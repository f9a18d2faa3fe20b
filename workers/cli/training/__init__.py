"""Commands about what a trainer makes: steps, checkpoints, versions and models."""
