"""Fixtures of tests of the explorer."""

from tests.integration.explorer.explorers import alone, fork_server, settings

__all__ = ["alone", "fork_server", "settings"]
