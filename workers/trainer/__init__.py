"""The trainer: trains on finalized batches in the order of the log, and serves the new weights."""
