"""What comes of a draft: files of settings without secrets."""

from trinity_bus.config.template import rendered, toml_value
from trinity_bus.console.configuration.questions import TASKS, Draft, TaskRows, fields


def mesh_file(draft: Draft) -> str:
    head = (
        "Settings of a mesh, as the console has written them: `trinity-bus --config mesh.toml config check` checks "
        "them. Paths count from the folder that a service is started in. Secrets go into the environment."
    )
    values = {path: value for path, value in draft.values.items() if not fields()[path].is_secret}
    return rendered(head, values | ({} if draft.rows is None else {"taskset.path": TASKS}))


def tasks_file(rows: TaskRows) -> str:
    """Return the description of tasks: docs/tasksets.md."""
    lines = [
        "# What is trained on: `trinity-bus tasks tasks.toml --show 2` reads and checks every row.",
        "[[train]]",
        f"path = {toml_value(rows.path)}",
        f"workflow = {toml_value(rows.workflow)}",
        f"prompt = {toml_value('${' + rows.prompt + '}')}",
    ]
    if rows.answer:
        lines.append(f"answer = {toml_value('${' + rows.answer + '}')}")
    return "\n".join(lines) + "\n"
