"""What a token weighs that another policy drew than the one that its loss takes it to be from."""
