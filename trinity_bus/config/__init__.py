"""Settings: read once at start from the environment, checked before anything else starts.

Every setting is an environment variable, ``TRINITY_BUS_<SECTION>__<SETTING>``: ``TRINITY_BUS_MESH__NAMESPACE=team-a``
sets ``Settings().mesh.namespace``. A wrong value raises one :class:`~trinity_bus.errors.ConfigError` of one line.
Secrets never appear in a message. Telemetry is also configured by the standard ``OTEL_`` variables. Durations are in
seconds and end in ``_s``. Each section is a module of its own.
"""

from trinity_bus.config.access import AccessSettings
from trinity_bus.config.broker import BrokerSettings
from trinity_bus.config.coordinator import MIN_OPEN_BYTES, CoordinatorSettings
from trinity_bus.config.environment import forget_secrets
from trinity_bus.config.explorer import ExplorerSettings
from trinity_bus.config.health import HealthSettings
from trinity_bus.config.kafka import KafkaSettings
from trinity_bus.config.mesh import MeshSettings
from trinity_bus.config.messages import required
from trinity_bus.config.names import env_name
from trinity_bus.config.section import Section
from trinity_bus.config.sections import secret_variables, sections, setting_fields, setting_paths
from trinity_bus.config.settings import Settings
from trinity_bus.config.synchronizer import SynchronizerSettings
from trinity_bus.config.taskset import TasksetSettings
from trinity_bus.config.telemetry import TelemetrySettings
from trinity_bus.config.trainer import TrainerSettings

__all__ = [
    "MIN_OPEN_BYTES",
    "AccessSettings",
    "BrokerSettings",
    "CoordinatorSettings",
    "ExplorerSettings",
    "HealthSettings",
    "KafkaSettings",
    "MeshSettings",
    "Section",
    "Settings",
    "SynchronizerSettings",
    "TasksetSettings",
    "TelemetrySettings",
    "TrainerSettings",
    "env_name",
    "forget_secrets",
    "required",
    "secret_variables",
    "sections",
    "setting_fields",
    "setting_paths",
]
