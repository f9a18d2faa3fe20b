"""The coordinator: a transactional stream processor around ``trinity_bus.coordination``."""
