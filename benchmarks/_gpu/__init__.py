"""The parts of the check of a machine with GPUs, and what runs each of them in a process of its own."""
