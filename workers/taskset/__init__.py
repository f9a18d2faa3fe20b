"""The taskset: turns a dataset into tasks, at the pace at which the mesh answers them."""
