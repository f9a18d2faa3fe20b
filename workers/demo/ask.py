"""A question to a trained model: greedy, on the CPU, straight from its Hugging Face folder."""

import asyncio
from pathlib import Path

from schemas.sampling import Sampling
from trinity_bus.chat import renderer_for
from trinity_bus.chat.encoding import encoder_of
from workers.demo.local_engine import LocalEngine


def ask(model: Path, prompt: str, *, max_tokens: int) -> str:
    """Return the model's greedy answer; the prompt goes through the chat template where the model has one."""
    engine = LocalEngine(model)
    if engine.tokenizer.chat_template:
        token_ids = renderer_for(engine.tokenizer).prompt([{"role": "user", "content": prompt}], None)
    else:
        token_ids = encoder_of(engine.tokenizer).prompt(prompt)
    (answer,) = asyncio.run(engine.generate(token_ids, Sampling(temperature=0.0, max_tokens=max_tokens)))
    return engine.tokenizer.decode(answer.token_ids, skip_special_tokens=True)
