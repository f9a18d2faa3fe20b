"""Starts an engine, prints the process ids below this one, and waits to be killed.

``python -m tests.support.lonely_engine MODEL``
"""

import asyncio
import sys

import psutil

from trinity_bus.config import ExplorerSettings
from trinity_bus.inference.engine import InferenceEngine


async def main() -> None:
    engine = InferenceEngine(ExplorerSettings(model_path=sys.argv[1], dtype="float32", max_model_len=128))
    await engine.start()
    # vLLM logs to the same stream.
    sys.stdout.write(" ".join(["children:", *(str(child.pid) for child in psutil.Process().children(recursive=True))]))
    sys.stdout.write("\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
