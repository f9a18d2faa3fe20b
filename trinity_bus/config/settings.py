"""All settings, read once at the start and checked before anything else starts."""

from typing import Any

from pydantic import ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from trinity_bus.config.environment import Environment
from trinity_bus.config.file import File
from trinity_bus.config.messages import WrongSettingsError, line
from trinity_bus.config.names import ENV_DELIMITER, ENV_PREFIX, env_name
from trinity_bus.config.origins import Origins
from trinity_bus.config.sections import Sections


class Settings(Sections):
    """All settings: what a program gives, before the environment, before the file, before the defaults.

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
        del env_settings, dotenv_settings, file_secret_settings
        return init_settings, Environment(settings_cls), File(settings_cls)

    def __init__(self, **values: Any) -> None:
        origins = Origins(type(self))
        unknown = origins.unknown()
        problems = [*unknown.values()]
        try:
            super().__init__(**values)
        except ValidationError as error:
            # The cause is left out: it prints the whole input, secrets included.
            for detail in error.errors(include_url=False):
                path = ".".join(str(part) for part in detail["loc"])
                if path not in unknown and env_name(path) not in map(str.upper, unknown):
                    problems.append(line(detail, origins.label, origins.told))
        except SettingsError:
            # A section's own variable, which is no setting and holds no JSON.
            if not problems:
                raise
        if problems:
            raise WrongSettingsError(problems) from None
