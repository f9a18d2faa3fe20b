"""The Python that runners run in: the explorer's own, or one of the user's, whose packages need not agree with vLLM's.

Of the user's it is asked at start, before anything depends on it, whether it is there, whether its Python and its
trinity-bus are the explorer's versions (what explorer and runners say to each other has no versions of its own), and
whether it has what runners import.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from trinity_bus.config import env_name
from trinity_bus.errors import ConfigError

# What every runner imports beside the standard library, ``schemas`` and ``trinity_bus``: no torch, vLLM or client of
# Kafka. A test follows their imports and holds them to it.
IMPORTED: Final = (
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
_LIMIT_S: Final = 60.0
_ASK: Final = """
import importlib.metadata, importlib.util, json, sys
def lacks(name):
    try:
        return importlib.util.find_spec(name) is None
    except ModuleNotFoundError:
        return True
try:
    ours = importlib.metadata.version("trinity-bus")
except importlib.metadata.PackageNotFoundError:
    ours = None
python = "%d.%d" % sys.version_info[:2]
print(json.dumps({"python": python, "trinity-bus": ours, "lacks": [name for name in sys.argv[1:] if lacks(name)]}))
"""


def interpreter(python: Path | None, environment: Mapping[str, str]) -> str:
    """Return the interpreter for runners: the explorer's own where ``python`` is None.

    ConfigError: it cannot be run, or is not fit for runners; with what to do.
    """
    if python is None:
        return sys.executable
    said = _ask(python, environment)
    ours = {"python": "{}.{}".format(*sys.version_info), "trinity-bus": version("trinity-bus")}
    remedy = f"{python} -m pip install 'trinity-bus[runner]=={ours['trinity-bus']}'"
    if said["python"] != ours["python"]:
        raise _unfit(python, f"is Python {said['python']}, and the explorer's is {ours['python']}", "name one of that")
    if said["trinity-bus"] is None:
        raise _unfit(python, "has no trinity-bus", remedy)
    if said["trinity-bus"] != ours["trinity-bus"]:
        raise _unfit(python, f"has trinity-bus {said['trinity-bus']}, and the explorer {ours['trinity-bus']}", remedy)
    if said["lacks"]:
        raise _unfit(python, f"lacks {', '.join(said['lacks'])}", remedy)
    return str(python)


def _ask(python: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    try:
        done = subprocess.run(  # noqa: S603 (the operator names it)
            [python, "-c", _ASK, *IMPORTED],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=True,
        )
        said: dict[str, Any] = json.loads(done.stdout)
    except OSError as error:
        raise _unfit(python, f"cannot be run ({error.strerror})", "name the interpreter of an environment") from error
    except subprocess.TimeoutExpired as error:
        raise _unfit(python, f"said nothing for {_LIMIT_S:g} s", "see what it does when it is started") from error
    except (subprocess.CalledProcessError, ValueError) as error:
        last = (getattr(error, "stderr", "") or "").strip().splitlines()[-1:]
        raise _unfit(python, f"is no Python that works ({''.join(last) or error})", "name one that does") from error
    return said


def _unfit(python: Path, what: str, remedy: str) -> ConfigError:
    return ConfigError(f"{env_name('explorer.runner_python')}: {python} {what}: {remedy}")
