"""What settings are called in the environment."""

ENV_PREFIX = "TRINITY_BUS_"
ENV_DELIMITER = "__"
FILE_SUFFIX = "_FILE"


def env_name(path: str) -> str:
    """Return the environment variable of a setting: ``"kafka.namespace"`` gives ``"TRINITY_BUS_KAFKA__NAMESPACE"``."""
    return ENV_PREFIX + path.replace(".", ENV_DELIMITER).upper()
