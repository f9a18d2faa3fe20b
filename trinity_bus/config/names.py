"""What settings are called in the environment."""

ENV_PREFIX = "TRINITY_BUS_"
ENV_DELIMITER = "__"
FILE_SUFFIX = "_FILE"
CONFIG_VARIABLE = ENV_PREFIX + "CONFIG"  # names the settings file


def env_name(path: str) -> str:
    """Return the environment variable of a setting: ``"mesh.namespace"`` gives ``"TRINITY_BUS_MESH__NAMESPACE"``."""
    return ENV_PREFIX + path.replace(".", ENV_DELIMITER).upper()
