"""Topics: how they are created and checked, how they grow, and what a client must know of them."""
