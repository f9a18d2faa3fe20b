"""All settings, read once at the start and checked before anything else starts."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from trinity_bus.config.sections import Sections
from trinity_bus.config.sources import Environment, File, Origins, WrongSettingsError, line
from trinity_bus.config.values import ENV_DELIMITER, ENV_PREFIX, env_name


class Settings(Sections, BaseSettings):
    """All settings: what a program gives, before the environment, before the file, before the defaults.

    Raises:
        ConfigError: A value is wrong, or a name is misspelt.
    """

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_nested_delimiter=ENV_DELIMITER,
        # Compose files pass on unset variables as empty ones.
        env_ignore_empty=True,
    )

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, *_: Any, **_others: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
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
        if problems:
            raise WrongSettingsError(problems) from None


def read_given(values: Mapping[str, object]) -> tuple[Sections | None, Mapping[str, str]]:
    """Return settings by their places, such as ``mesh.model_path``, text as in variables; or None and the faults."""
    # What is wrong is a line each, by the setting or section that is.
    nested: dict[str, dict[str, Any]] = {}
    for path, value in values.items():
        section, _, name = path.partition(".")
        nested.setdefault(section, {})[name] = value
    try:
        return Sections(**nested), {}
    except ValidationError as error:
        # The cause is left out: it prints the whole input, secrets included.
        details = error.errors(include_url=False)
    return None, {".".join(map(str, one["loc"][:2])): line(one, str, str) for one in details}
