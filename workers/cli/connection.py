"""How a command finds its settings and its broker."""

from trinity_bus.broker import resolve_bootstrap
from trinity_bus.config import Settings


def connected_settings() -> Settings:
    """Return the settings of the environment, with a broker's address.

    The configured one, or the embedded one that runs.

    Raises:
        ConfigError: A setting is wrong, or no broker is configured and none runs.
    """
    settings = Settings()
    return settings.model_copy(update={"kafka": resolve_bootstrap(settings.kafka, settings.broker)})
