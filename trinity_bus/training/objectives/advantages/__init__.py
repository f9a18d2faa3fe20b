"""Rewards to advantages: how much better a sample did than could be expected, for each of its tokens. Pure numpy."""
