"""Settings that somebody has thought of, and nobody has set: neither the environment nor a file has a say."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from trinity_bus.config.messages import line
from trinity_bus.config.sections import Sections


class GivenSettings(Sections):
    model_config = SettingsConfigDict(frozen=True, extra="forbid")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        del settings_cls, env_settings, dotenv_settings, file_secret_settings
        return (init_settings,)


def read_given(values: Mapping[str, object]) -> tuple[Sections | None, Mapping[str, str]]:
    """Return settings by their places, such as ``mesh.model_path``, text as in variables; or None and the faults."""
    # What is wrong is a line each, by the setting or section that is.
    nested: dict[str, dict[str, Any]] = {}
    for path, value in values.items():
        section, _, name = path.partition(".")
        nested.setdefault(section, {})[name] = value
    try:
        return GivenSettings(**nested), {}  # type: ignore[arg-type] # which are validated
    except ValidationError as error:
        # The cause is left out: it prints the whole input, secrets included.
        details = error.errors(include_url=False)
    return None, {".".join(map(str, one["loc"][:2])): line(one, str, str) for one in details}
