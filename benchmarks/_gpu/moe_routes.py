"""Routes from engine to trainer: a model with experts, whose engine tells which it chose (``explorer.capture_routes``).

The trainer computes the log-probabilities of what was drawn, once as its own routers choose and once as the engine's
did: ``mismatch_k3`` is what the two disagree by, and is to be smaller with the routes.
"""

import argparse
from pathlib import Path

from benchmarks._gpu.drawing import draw, prompt, started
from benchmarks._gpu.figures import Figures
from benchmarks._gpu.sizes import SIZES
from benchmarks._records import groups_of
from schemas import Rollout, Sampling
from trinity_bus.config import TrainerSettings

_EXPERTS, _CHOSEN, _LAYERS = 32, 4, 8


def make_model(folder: Path) -> Path:
    import torch
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    config = Qwen3MoeConfig(
        vocab_size=16_384, hidden_size=1024, num_hidden_layers=_LAYERS, num_attention_heads=8, num_key_value_heads=2,
        head_dim=128, intermediate_size=2048, moe_intermediate_size=512, num_experts=_EXPERTS,
        num_experts_per_tok=_CHOSEN, norm_topk_prob=True, max_position_embeddings=512, initializer_range=0.05,
        tie_word_embeddings=False, eos_token_id=1, bos_token_id=None, pad_token_id=0, dtype="float32"
    )  # fmt: skip
    torch.manual_seed(0)
    Qwen3MoeForCausalLM(config).save_pretrained(folder)
    return folder


async def measure(options: argparse.Namespace, figures: Figures) -> None:
    from trinity_bus.training.engines.megatron_engine import MegatronEngine

    size, model = SIZES[options.size], make_model(options.folder)
    async with started(model, options.dtype, size, capture_routes=True) as drawing:
        answers = await draw(drawing, size, figures, "routes captured")
    rollouts = [
        Rollout(
            prompt_token_ids=prompt(number),
            response_token_ids=answer.token_ids,
            logprobs=answer.logprobs,
            reward=float(number % 2),
            routes=answer.routes,
        )
        for number, answer in enumerate(answers)
    ]
    groups = groups_of([rollouts], sampling=Sampling(temperature=1.0))
    for replay in (False, True):
        engine = MegatronEngine(TrainerSettings(model_path=str(model), dtype=options.dtype, router_replay=replay))
        metrics = engine.train_step(groups)
        engine.leave()
        name = "the engine's routes" if replay else "the trainer's own routes"
        figures.row(f"{name}: mismatch, k3", metrics["mismatch_k3"], "nats", better="lower")
        if replay:
            figures.row("samples without routes", metrics["samples_without_routes"], "", goal=0, better="lower")
