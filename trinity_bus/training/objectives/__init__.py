"""What is optimized: an advantage, a loss and a correction, each chosen by name, each a file of its own.

docs/objectives.md has all of them with formula, source and needs, and how an installed package adds its own.

``objective`` puts the three together with the KL penalty and the entropy bonus; ``needs`` names what they can ask the
engine for, and only those passes run; ``registry`` finds them by name, those of
installed packages too. This package and ``registry`` import no torch.
"""
