"""Inference: token ids in, token ids and the log-probabilities of what was drawn out, under weights that move.

``engine`` has vLLM behind one class, and ``server`` inference servers of somebody else behind the same interface.
"""
