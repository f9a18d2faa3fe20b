"""Checkpoints: versions that a member reads from storage that both see."""
