"""Weights: from the trainer's memory into the engines', while generation goes on.

``buckets``        the agreed order and layout of the bytes, and their checksum          (pure, no torch)
``manifest``       what a trainer says about one version before it sends it              (pure, no torch)
``link``           a private two-rank process group between the trainer and one member
``publisher``      the trainer's side: stage a version once, serve it to any number of members
``receiver``       a member's side: receive and verify in a thread, hand over whole versions only
``vllm_engine``    the receiver behind vLLM's own weight-transfer interface
``vllm_plugin``    makes vLLM's processes know ``vllm_engine``
"""
