"""What each token costs, given its advantage."""
