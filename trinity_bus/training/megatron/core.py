"""The only import of Megatron-core: every other module takes its names from here, fitted to the platform."""

from trinity_bus.training.megatron import cpu_platform

cpu_platform.prepare()

# Below the call above on purpose: it decides how these modules are imported.
from megatron.core import parallel_state  # noqa: E402
from megatron.core.distributed import (  # noqa: E402
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.fusions.fused_bias_swiglu import weighted_bias_swiglu_impl  # noqa: E402
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import (  # noqa: E402
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.optimizer import optimizer as optimizers  # noqa: E402
from megatron.core.packed_seq_params import PackedSeqParams  # noqa: E402
from megatron.core.pipeline_parallel import get_forward_backward_func  # noqa: E402
from megatron.core.tensor_parallel import mappings  # noqa: E402
from megatron.core.tensor_parallel.layers import (  # noqa: E402
    set_defaults_if_not_set_tensor_model_parallel_attributes,
    set_tensor_model_parallel_attributes,
)
from megatron.core.tensor_parallel.random import (  # noqa: E402
    initialize_rng_tracker,
    model_parallel_cuda_manual_seed,
)
from megatron.core.transformer.module import Float16Module, MegatronModule  # noqa: E402
from megatron.core.transformer.moe.router import TopKRouter  # noqa: E402
from megatron.core.transformer.moe.router_replay import RouterReplay, RouterReplayAction  # noqa: E402
from megatron.core.transformer.spec_utils import ModuleSpec  # noqa: E402
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402

__all__ = [
    "DistributedDataParallel",
    "DistributedDataParallelConfig",
    "Float16Module",
    "GPTModel",
    "MegatronModule",
    "ModuleSpec",
    "OptimizerConfig",
    "PackedSeqParams",
    "RouterReplay",
    "RouterReplayAction",
    "TopKRouter",
    "TransformerBlockSubmodules",
    "TransformerConfig",
    "finalize_model_grads",
    "get_forward_backward_func",
    "get_gpt_layer_local_spec",
    "get_gpt_layer_with_transformer_engine_spec",
    "get_megatron_optimizer",
    "initialize_rng_tracker",
    "mappings",
    "model_parallel_cuda_manual_seed",
    "optimizers",
    "parallel_state",
    "set_defaults_if_not_set_tensor_model_parallel_attributes",
    "set_tensor_model_parallel_attributes",
    "weighted_bias_swiglu_impl",
]
