"""A mesh's settings, asked for question by question: what fields there are, what answers mean, what comes of them.

Pure, but for looking whether files are there that settings name. Nothing of a secret is read, shown or written.
"""

from trinity_bus.console.configuration.chart import chart_values
from trinity_bus.console.configuration.checks import Checked, Checks, SettingProblem
from trinity_bus.console.configuration.fields import SettingField, fields, sections_of_fields
from trinity_bus.console.configuration.files import (
    Difference,
    changed_values,
    compose_env,
    compose_mesh_file,
    differences,
    mesh_file,
    tasks_file,
)
from trinity_bus.console.configuration.plan import PlannedService, planned
from trinity_bus.console.configuration.questions import (
    EXTRA_FIELDS,
    HARDWARE,
    QUESTIONS,
    TASKS,
    BadAnswerError,
    Draft,
    TaskRows,
    answers_of,
    draft_of,
)
from trinity_bus.console.configuration.running import RunningSettings, running_settings

__all__ = [
    "EXTRA_FIELDS",
    "HARDWARE",
    "QUESTIONS",
    "TASKS",
    "BadAnswerError",
    "Checked",
    "Checks",
    "Difference",
    "Draft",
    "PlannedService",
    "RunningSettings",
    "SettingField",
    "SettingProblem",
    "TaskRows",
    "answers_of",
    "changed_values",
    "chart_values",
    "compose_env",
    "compose_mesh_file",
    "differences",
    "draft_of",
    "fields",
    "mesh_file",
    "planned",
    "running_settings",
    "sections_of_fields",
    "tasks_file",
]
