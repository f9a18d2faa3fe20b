"""The gateway: agents' requests over HTTP, answered by explorers, and made into experiences."""
