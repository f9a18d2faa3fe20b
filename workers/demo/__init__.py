"""The demo: a whole mesh on one machine teaches a model of random weights to do as it is told."""
