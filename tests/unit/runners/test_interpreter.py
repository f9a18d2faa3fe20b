"""The Python that runners run in: what they import, and which interpreters are refused."""

import ast
import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from trinity_bus.errors import ConfigError
from trinity_bus.runners.fork_server import interpreter

# What every runner imports beside the standard library, ``schemas`` and ``trinity_bus``: no torch, vLLM or client of
# Kafka.
IMPORTED = (
    "aiohttp",
    "annotated_types",
    "jinja2",
    "msgpack",
    "msgspec",
    "numpy",
    "opentelemetry.exporter.otlp.proto.http",
    "opentelemetry.instrumentation.logging",
    "opentelemetry.sdk",
    "pydantic",
    "pydantic_core",
    "pydantic_settings",
    "rich",
    "transformers",
    "uvloop",
    "xxhash",
)
ROOT = Path(__file__).parents[3]
IMPORTS = """
import importlib.util, sys
sys.modules["torch"] = None
import trinity_bus.runners.fork_server_main, trinity_bus.chat.encoding, trinity_bus.rollout.agents
theirs = [m for m in sys.modules if m.partition(".")[0] in ("schemas", "trinity_bus")]
sources = [importlib.util.find_spec(m).origin for m in theirs]
print("\\n".join(sorted(set(sources))))
print("LOADED", *sorted({m.partition(".")[0] for m in sys.modules if sys.modules[m] is not None}))
"""


def imported_by(source: Path) -> set[str]:
    """Return the packages that a module imports, those in its functions too."""
    nodes = list(ast.walk(ast.parse(source.read_text(encoding="utf-8"))))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level}
    return {name.partition(".")[0] for name in names}


def test_what_runners_import_is_small_and_named() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True, cwd=ROOT)
    *sources, last = done.stdout.splitlines()
    loaded = set(last.split())
    extras = {"math_verify", "reasoning_gym"}  # imported by the workflows that need them, when they run
    assert not loaded & {"torch", "vllm", "aiokafka", "megatron", "ray", "typer", "fastapi", "transformers", *extras}
    # Read off the sources, those that are imported later in a function too; less what is named.
    named = {name.partition(".")[0] for name in IMPORTED}
    imported = {name for source in sources for name in imported_by(Path(source))}
    own = {"schemas", "trinity_bus"}
    assert imported - set(sys.stdlib_module_names) - own - extras - named == set()
    assert named - imported == {"jinja2"}, "transformers writes chat templates with it"


def script(folder: Path, body: str) -> Path:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


SOUND = {"python": "3.12", "trinity-bus": version("trinity-bus"), "lacks": []}


def test_unset_it_is_the_explorers_own_which_is_fit(tmp_path: Path) -> None:
    assert interpreter(None, {}) == sys.executable
    assert interpreter(Path(sys.executable), {}) == sys.executable
    assert interpreter(script(tmp_path, f"echo '{json.dumps(SOUND)}'"), {}) == str(tmp_path / "python")


def test_one_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"RUNNER_PYTHON: \S+ cannot be run \(No such file or directory\): name"):
        interpreter(tmp_path / "python", {})


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"python": "3.11"}, r"is Python 3\.11, and the explorer's is 3\.12: name one of that"),
        ({"trinity-bus": None}, r"has no trinity-bus: \S+ -m pip install 'trinity-bus\[runner\]=="),
        ({"trinity-bus": "0.0.1"}, r"has trinity-bus 0\.0\.1, and the explorer \S+: \S+ -m pip install"),
        ({"lacks": ["msgspec", "transformers"]}, r"lacks msgspec, transformers: \S+ -m pip install"),
        *((body, "is no Python that works") for body in ("exit 3", "echo so", "echo broken >&2; exit 1")),
    ],
)
def test_one_that_is_not_fit_or_does_not_work_is_refused_with_the_remedy(
    tmp_path: Path, how: dict[str, Any] | str, why: str
) -> None:
    body = how if isinstance(how, str) else f"echo '{json.dumps(SOUND | how)}'"
    with pytest.raises(ConfigError, match=why) as refused:
        interpreter(script(tmp_path, body), {})
    assert isinstance(how, str) or "\n" not in str(refused.value)
