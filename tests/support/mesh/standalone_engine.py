"""Starts an engine as a service does, prints the process ids below this one, and waits to be stopped or killed.

``python -m tests.support.mesh.standalone_engine MODEL``
"""

import asyncio
import sys

import psutil

from trinity_bus.config import ExplorerSettings
from trinity_bus.inference.engine import InferenceEngine
from trinity_bus.runtime.service import run_service


async def main() -> None:
    engine = InferenceEngine(ExplorerSettings(model_path=sys.argv[1], dtype="float32", max_model_len=128))
    await engine.start()
    # vLLM logs to the same stream.
    sys.stdout.write(" ".join(["children:", *(str(child.pid) for child in psutil.Process().children(recursive=True))]))
    sys.stdout.write("\n")
    sys.stdout.flush()
    try:
        await asyncio.Event().wait()
    finally:
        await engine.stop()


if __name__ == "__main__":
    run_service(main)
