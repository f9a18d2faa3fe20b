"""Batches: their tasks from acceptance to result, their ends, and the order of training."""
