"""The folders of the embedded broker, by the XDG base directory rules."""

import os
from pathlib import Path

from trinity_bus.config import BrokerSettings


def cache_dir(settings: BrokerSettings) -> Path:
    return (settings.cache_dir or xdg("XDG_CACHE_HOME", ".cache") / "trinity-bus").expanduser().absolute()


def data_dir(settings: BrokerSettings) -> Path:
    return (
        (settings.data_dir or xdg("XDG_DATA_HOME", ".local/share") / "trinity-bus" / "broker").expanduser().absolute()
    )


def xdg(variable: str, default: str) -> Path:
    value = os.environ.get(variable, "")
    # The rules say that a relative path must be ignored.
    return Path(value) if Path(value).is_absolute() else Path.home() / default
