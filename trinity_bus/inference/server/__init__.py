"""Inference servers of somebody else as an explorer's engine: vLLM's, or any with token ids and log-probabilities."""
