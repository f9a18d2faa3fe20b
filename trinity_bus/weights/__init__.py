"""Weights: from the trainer's memory into the engines', while generation goes on.

``buckets``           the agreed order and layout of the bytes, and their checksum          (pure, no torch)
``manifest``          what a trainer says about one version before it moves                 (pure, no torch)
``delta``             what turns the bytes of one version into those of another             (pure, no torch)
``staging``           the trainer's copies of versions: converted, packed, hashed, kept while they are read
``hashing``           hashing beside other work
``proof``             what a member and its trainer say to prove themselves            (pure, no torch)
``channel``           a connection on which both have
``listener``          the trainer's port: lets members in, and bounds strangers
``feed``              what all ways have in common on which a version comes to a member
``door``              a worker's side door: begins transfers while the engine computes
``receiver``          a member's side: receive and verify in a thread, hand over whole versions only
``vllm_engine``       the receiver behind vLLM's own weight-transfer interface
``vllm_loading``      loading a version into a model of vLLM, in place or beside it
``vllm_plugin``       makes vLLM's processes know ``vllm_engine``

==============  ========================================  ==============================  ============================
method          how                                       trainer's end                   member's end
==============  ========================================  ==============================  ============================
gloo, nccl      sent to each over a private link          ``publisher``, ``link``,        ``link_feed``, ``link``,
                                                          ``link_store``, ``nccl``        ``link_store``, ``nccl``
memory          taken from the trainer, over TCP          ``server``, ``wire``            ``pull_feed``, ``wire``
checkpoint      read from shared storage                  ``folder_publisher``,           ``folder_feed``,
                                                          ``published``                   ``tensor_file``
==============  ========================================  ==============================  ============================

All deliver the same bytes in the same order with the same checksum, and all end at ``receiver``.
"""
