"""Weights: from the trainer's memory into the engines', while generation goes on.

==============  ========================================  ==============================  ============================
method          how                                       trainer's end                   member's end
==============  ========================================  ==============================  ============================
gloo, nccl      from the trainer, over links              ``pull.server``                 ``pull.transport``
memory          from the trainer and members, over TCP    ``pull.server``                 ``pull.transport``
checkpoint      read from shared storage                  ``checkpoint``                  ``checkpoint``
object          by way of an object store                 ``objects``                     ``objects``
==============  ========================================  ==============================  ============================

All deliver the same bytes in the same order with the same checksum (``layout``), and all end at ``receiver``, in
``vllm``'s engine.
"""
