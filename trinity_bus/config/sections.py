"""Which sections there are, and what is in them."""

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic.fields import FieldInfo

from trinity_bus.config.coordinator import CoordinatorSettings, SynchronizerSettings, TasksetSettings
from trinity_bus.config.explorer import ExplorerSettings
from trinity_bus.config.mesh import AccessSettings, BrokerSettings, KafkaSettings, MeshSettings, is_of_mesh
from trinity_bus.config.outside import ConsoleSettings, GatewaySettings, HealthSettings, TelemetrySettings
from trinity_bus.config.trainer import TrainerSettings
from trinity_bus.config.values import Section, conflict, env_name


class Sections(BaseModel):
    """All sections, as a program gives them; :class:`~trinity_bus.config.settings.Settings` reads them, too."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    # The first, because the others take from it.
    mesh: MeshSettings = Field(default_factory=MeshSettings)
    kafka: KafkaSettings = Field(default_factory=KafkaSettings)
    access: AccessSettings = Field(default_factory=AccessSettings)
    broker: BrokerSettings = Field(default_factory=BrokerSettings)
    coordinator: CoordinatorSettings = Field(default_factory=CoordinatorSettings)
    synchronizer: SynchronizerSettings = Field(default_factory=SynchronizerSettings)
    explorer: ExplorerSettings = Field(default_factory=ExplorerSettings)
    trainer: TrainerSettings = Field(default_factory=TrainerSettings)
    taskset: TasksetSettings = Field(default_factory=TasksetSettings)
    gateway: GatewaySettings = Field(default_factory=GatewaySettings)
    console: ConsoleSettings = Field(default_factory=ConsoleSettings)
    health: HealthSettings = Field(default_factory=HealthSettings)
    telemetry: TelemetrySettings = Field(default_factory=TelemetrySettings)

    @field_validator("*", mode="after")
    @classmethod
    def _take_from_mesh(cls, section: Section, info: ValidationInfo) -> Section:
        # Unless a program has made it with values of its own.
        mesh = info.data.get("mesh")
        if mesh is None:
            # The section itself, or the one that is wrong.
            return section
        shared = {name for name, field in type(section).model_fields.items() if is_of_mesh(field)}
        taken = {name: getattr(mesh, name) for name in shared - section.model_fields_set}
        if isinstance(section, ExplorerSettings | GatewaySettings | ConsoleSettings):
            taken["model_path"] = section.model_path or mesh.model_path
        if isinstance(section, ExplorerSettings):
            taken["follows"] = section.follows or ("trainer" if mesh.mode == "both" else "none")
        section = section.model_copy(update=taken)
        if isinstance(section, CoordinatorSettings):
            section.fits_records()
        if isinstance(section, TrainerSettings) and (section.overlong_buffer or 0) > section.max_tokens:
            raise conflict(
                f"trainer.overlong_buffer is {section.overlong_buffer}, so every response would lose of its reward: "
                f"mesh.max_tokens is {section.max_tokens}"
            )
        return section


def sections() -> dict[str, type[Section]]:
    # By name.
    kinds = ((name, field.annotation) for name, field in Sections.model_fields.items())
    return {name: kind for name, kind in kinds if isinstance(kind, type) and issubclass(kind, Section)}


def setting_fields() -> dict[str, FieldInfo]:
    """Return every setting by its path, such as ``"kafka.bootstrap_servers"``, in the order of the sections."""
    return {
        f"{section}.{name}": field
        for section, kind in sections().items()
        for name, field in kind.model_fields.items()
        if not is_of_mesh(field)
    }


def secret_variables() -> list[str]:
    """Return the environment variable of every setting that is a secret; each can be given with ``_FILE`` instead."""
    return [env_name(path) for path, field in setting_fields().items() if is_secret(field)]


def is_secret(field: FieldInfo) -> bool:
    return "SecretStr" in str(field.annotation)
