"""Settings: read once at the start from the environment and a file, and checked before anything else starts.

Every setting has its place in a TOML file that ``TRINITY_BUS_CONFIG`` names, and is an environment variable, which
counts more: ``TRINITY_BUS_<SECTION>__<SETTING>``: ``TRINITY_BUS_MESH__NAMESPACE=team-a``
sets ``Settings().mesh.namespace``. A wrong value raises one :class:`~trinity_bus.errors.ConfigError` of one line.
Secrets never appear in a message. Telemetry is also configured by the standard ``OTEL_`` variables. Durations are in
seconds and end in ``_s``.
"""

from trinity_bus.config.coordinator import MIN_OPEN_BYTES, CoordinatorSettings, SynchronizerSettings, TasksetSettings
from trinity_bus.config.explorer import ExplorerSettings
from trinity_bus.config.mesh import AccessSettings, BrokerSettings, KafkaSettings, MeshSettings
from trinity_bus.config.outside import ConsoleSettings, GatewaySettings, HealthSettings, TelemetrySettings
from trinity_bus.config.sections import secret_variables, sections, setting_fields
from trinity_bus.config.settings import Settings
from trinity_bus.config.sources import Origins, WrongSettingsError, forget_secrets, required
from trinity_bus.config.template import told_settings, values_told
from trinity_bus.config.trainer import TrainerSettings
from trinity_bus.config.values import CONFIG_VARIABLE, Section, env_name

__all__ = [
    "CONFIG_VARIABLE",
    "MIN_OPEN_BYTES",
    "AccessSettings",
    "BrokerSettings",
    "ConsoleSettings",
    "CoordinatorSettings",
    "ExplorerSettings",
    "GatewaySettings",
    "HealthSettings",
    "KafkaSettings",
    "MeshSettings",
    "Origins",
    "Section",
    "Settings",
    "SynchronizerSettings",
    "TasksetSettings",
    "TelemetrySettings",
    "TrainerSettings",
    "WrongSettingsError",
    "env_name",
    "forget_secrets",
    "required",
    "secret_variables",
    "sections",
    "setting_fields",
    "told_settings",
    "values_told",
]
