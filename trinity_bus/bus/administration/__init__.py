"""Administration: rights of users, and how the cluster is."""
