"""The section ``health``: where a service answers for its health."""

from typing import Annotated

from pydantic import Field

from trinity_bus.config.section import Section
from trinity_bus.config.values import Seconds


class HealthSettings(Section):
    """Where a service answers ``/livez`` and ``/readyz``."""

    port: Annotated[int, Field(ge=0, lt=1 << 16)] | None = None
    """Port of the endpoint. Unset: none."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    wedged_s: Seconds = 15.0
    """A process whose event loop is blocked for this long is not alive."""
    start_s: Seconds = 900.0
    """How long a process may take to start."""
    unread_s: Seconds = 60.0
    """A service that has read nothing for this long, although there is something to read, is not ready."""
