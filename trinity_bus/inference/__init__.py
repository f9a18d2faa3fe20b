"""Inference: token ids in, token ids and the log-probabilities of what was drawn out, under weights that move.

``sampling``      what a task asks for, as the engine's parameters
``completion``    what the engine gives, as plain token ids, logprobs and version spans
``launch``        vLLM's configuration, and a start that imports once
``tracing``       a span of each request, through this process's own tracer
``weight_sync``   one weight transfer into the engine, around pause and resume
``engine``        all of it behind one class
``server``        an inference server of somebody else, behind the same interface
"""
