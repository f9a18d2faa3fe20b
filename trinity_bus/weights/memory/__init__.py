"""Memory: versions that a member takes from the trainer's server, over TCP."""
