"""Has Python keep the bytecode of what services and tests import: set-up runs it once.

uv installs packages without bytecode. The first start of a mesh would compile some 7,000 files, and where
PYTHONDONTWRITEBYTECODE is set, as in many containers, every start of every process would: more than half of its time.
To compile all that is installed would take minutes; to import what is used takes half of one.
"""

import importlib
import os
import sys
import warnings

MODULES = (
    "hypothesis",
    "pytest",
    "rich.live",
    "torch.distributed",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.qwen3.modeling_qwen3",
    "trinity_bus.training.engine",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core_client",
    "vllm.v1.worker.gpu_worker",
    "vllm.model_executor.models.qwen3",
    "workers.cli.demo",
    "workers.cli.run",
    "workers.console.service",
    "workers.coordinator.service",
    "workers.explorer.service",
    "workers.gateway.service",
    "workers.taskset.service",
    "workers.trainer.service",
)


def main() -> None:
    from trinity_bus.config import ExplorerSettings
    from trinity_bus.inference.launch import prepare_environment

    sys.dont_write_bytecode = False
    warnings.simplefilter("ignore")
    os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
    prepare_environment(ExplorerSettings())
    for module in MODULES:
        importlib.import_module(module)


if __name__ == "__main__":
    main()
