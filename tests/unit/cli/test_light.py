"""Commands that only look at things start at once: they load no machine-learning framework."""

import subprocess
import sys

import pytest

from workers.cli.app import COMMANDS

_CHECK = """
import importlib, sys
importlib.import_module({module!r})
heavy = sorted({{"torch", "vllm", "megatron", "transformers", "matplotlib"}} & set(sys.modules))
sys.exit(f"imported {{heavy}}" if heavy else 0)
"""


@pytest.mark.parametrize("module", sorted(command.module for command in COMMANDS.values()))
def test_importing_a_command_imports_no_framework(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _CHECK.format(module=module)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
