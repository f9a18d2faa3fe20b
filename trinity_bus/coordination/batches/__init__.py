"""Batches: the lifecycle of batches and their tasks, and the order of training."""
