"""The demo: a whole mesh on one machine trains a model with random weights."""
