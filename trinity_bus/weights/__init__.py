"""Weights: from the trainer's memory into the engines', while generation goes on.

``buckets``           the agreed order and layout of the bytes, and their checksum          (pure, no torch)
``manifest``          what a trainer says about one version before it moves                 (pure, no torch)
``delta``             what turns the bytes of one version into those of another             (pure, no torch)
``wire``              what is said over a connection, framed                                (pure, no torch)
``staging``           the trainer's copies of versions: converted, packed, hashed, kept while they are read
``base``              which model an adapter is for, where it is published alone
``hashing``           hashing beside other work
``transport``         what all ways have in common on which a version comes to a member
``receiver``          a member's side: receive and verify in a thread, hand over whole versions only
``vllm``              the receiver in an engine of vLLM: its plugin, its control server, loading in place or beside

==============  ========================================  ==============================  ============================
method          how                                       trainer's end                   member's end
==============  ========================================  ==============================  ============================
gloo, nccl      taken from the trainer, over links        ``pull.server``                 ``pull.transport``
memory          taken from the trainer, over TCP          ``pull.server``                 ``pull.transport``
checkpoint      read from shared storage                  ``checkpoint.publisher``        ``checkpoint.transport``
==============  ========================================  ==============================  ============================

The first two are one, but for what carries the bytes (``carrier``); their members pass on what they take. All deliver
the same bytes in the same order with the same checksum, and all end at ``receiver``.
"""
