"""vLLM: the receiver behind its weight-transfer interface, and how a model takes a version."""
