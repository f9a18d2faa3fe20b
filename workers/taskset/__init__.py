"""The task set: turns a dataset into tasks, as fast as the mesh answers them."""
