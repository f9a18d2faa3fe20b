"""Megatron-core, fitted to the platform: the model, passes over it, its optimizer and process groups."""
