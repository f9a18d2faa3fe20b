"""Training: engines, objectives, and everything a step needs, from a manifest's experiences to new weights.

Each module says at its top what it does; ``engine`` is the contract, ``engines.rank_engine`` the course of a step.
Importing this package, ``engine``, ``objectives``, ``steps``, ``checkpoint`` or ``ranks.followers`` imports no torch.
"""
