"""All settings, read once at the start and checked before anything else starts."""

import os
from typing import Any

from pydantic import ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from trinity_bus.config.environment import Environment, unknown_variables
from trinity_bus.config.messages import line, not_a_section, not_a_setting
from trinity_bus.config.names import ENV_DELIMITER, ENV_PREFIX
from trinity_bus.config.sections import Sections
from trinity_bus.errors import ConfigError


class Settings(Sections):
    """All settings, from the environment.

    Raises:
        ConfigError: A value is wrong, or a name is misspelt.
    """

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_nested_delimiter=ENV_DELIMITER,
        # Compose files pass on unset variables as empty ones.
        env_ignore_empty=True,
        frozen=True,
        extra="forbid",
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the environment alone, and the files that it names."""
        del env_settings, dotenv_settings, file_secret_settings
        return init_settings, Environment(settings_cls)

    def __init__(self, **values: Any) -> None:
        problems = [not_a_setting(name) for name in unknown_variables(os.environ)]
        try:
            super().__init__(**values)
        except ValidationError as error:
            # The cause is left out: it prints the whole input, secrets included.
            problems += [line(detail) for detail in error.errors(include_url=False)]
        except SettingsError:
            problems.append(not_a_section())
        if problems:
            raise ConfigError("; ".join(dict.fromkeys(problems))) from None
