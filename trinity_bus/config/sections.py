"""Which sections there are, and what is in them."""

from collections.abc import Iterator

from pydantic import Field
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings

from trinity_bus.config.access import AccessSettings
from trinity_bus.config.broker import BrokerSettings
from trinity_bus.config.coordinator import CoordinatorSettings
from trinity_bus.config.explorer import ExplorerSettings
from trinity_bus.config.health import HealthSettings
from trinity_bus.config.kafka import KafkaSettings
from trinity_bus.config.names import env_name
from trinity_bus.config.section import Section
from trinity_bus.config.synchronizer import SynchronizerSettings
from trinity_bus.config.taskset import TasksetSettings
from trinity_bus.config.telemetry import TelemetrySettings
from trinity_bus.config.trainer import TrainerSettings


class Sections(BaseSettings):
    """All sections. :class:`~trinity_bus.config.settings.Settings` reads them."""

    kafka: KafkaSettings = Field(default_factory=KafkaSettings)
    access: AccessSettings = Field(default_factory=AccessSettings)
    broker: BrokerSettings = Field(default_factory=BrokerSettings)
    coordinator: CoordinatorSettings = Field(default_factory=CoordinatorSettings)
    synchronizer: SynchronizerSettings = Field(default_factory=SynchronizerSettings)
    explorer: ExplorerSettings = Field(default_factory=ExplorerSettings)
    trainer: TrainerSettings = Field(default_factory=TrainerSettings)
    taskset: TasksetSettings = Field(default_factory=TasksetSettings)
    health: HealthSettings = Field(default_factory=HealthSettings)
    telemetry: TelemetrySettings = Field(default_factory=TelemetrySettings)


def sections() -> dict[str, type[Section]]:
    """Return the type of each section by its name."""
    kinds = ((name, field.annotation) for name, field in Sections.model_fields.items())
    return {name: kind for name, kind in kinds if isinstance(kind, type) and issubclass(kind, Section)}


def setting_paths() -> Iterator[tuple[str, str]]:
    """Every setting's environment variable and description, for documents and messages."""
    for section, kind in sections().items():
        for name, field in kind.model_fields.items():
            yield env_name(f"{section}.{name}"), field.description or ""


def secret_variables() -> list[str]:
    """Return the environment variable of every setting that is a secret; each can be given with ``_FILE`` instead."""
    return [
        env_name(f"{section}.{name}")
        for section, kind in sections().items()
        for name, field in kind.model_fields.items()
        if is_secret(field)
    ]


def is_secret(field: FieldInfo) -> bool:
    """Tell whether a setting's value must never be shown."""
    return "SecretStr" in str(field.annotation)
