"""What each kind of input does to the machine's state."""
