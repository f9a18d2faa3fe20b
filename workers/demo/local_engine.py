"""An engine in this process, on the CPU, for one who tries something out: transformers and a Hugging Face folder.

Failures: what a task asks for and this engine cannot do is an :class:`LocalEngineError`; nothing is passed over.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from schemas.sampling import Sampling
from trinity_bus.chat import Tokenizer
from trinity_bus.chat.messages import Completion
from trinity_bus.errors import TrinityError

MAX_TOKENS: Final = 256  # Of a response, where nothing else is said
_KNOWN: Final = {"temperature", "max_tokens", "top_p", "top_k", "seed", "stop"}


class LocalEngineError(TrinityError, ValueError):
    """A folder holds no model, or a task asks for something of its sampling that only an explorer's engine can do."""


class LocalEngine:
    """Draws from a Hugging Face folder. Raises LocalEngineError where it cannot be loaded."""

    def __init__(self, folder: Path) -> None:
        if not (folder / "config.json").is_file():
            raise LocalEngineError(f"{folder} is not a Hugging Face model folder: it has no config.json")
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        try:
            loaded: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            self._network: Any = AutoModelForCausalLM.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False, use_safetensors=True
            )
        except (OSError, ValueError) as error:
            raise LocalEngineError(f"{folder} cannot be loaded: {error}") from error
        self.tokenizer: Tokenizer = loaded

    async def generate(
        self, prompt_token_ids: Sequence[int], sampling: Sampling, n: int = 1, traceparent: str | None = None
    ) -> list[Completion]:
        """Draw ``n`` responses, as version 0. Raises LocalEngineError where this engine cannot draw so."""
        del traceparent
        if unknown := {*sampling.model_dump(exclude_none=True)} - _KNOWN:
            raise LocalEngineError(f"the local engine cannot do {', '.join(sorted(unknown))}; an explorer's can")
        return self._draw(list(prompt_token_ids), sampling, n)

    def _draw(self, prompt: list[int], sampling: Sampling, n: int) -> list[Completion]:
        import torch

        temperature = 1.0 if sampling.temperature is None else sampling.temperature
        if sampling.seed is not None:
            torch.manual_seed(sampling.seed)
        how = {"temperature": temperature, "top_p": sampling.top_p or 1.0, "top_k": max(sampling.top_k or 0, 0)}
        with torch.inference_mode():
            drawn = self._network.generate(
                input_ids=torch.tensor([prompt] * n),
                attention_mask=torch.ones(n, len(prompt), dtype=torch.long),
                max_new_tokens=sampling.max_tokens or MAX_TOKENS,
                do_sample=temperature > 0,
                **(how if temperature > 0 else {}),
                **({"stop_strings": sampling.stop, "tokenizer": self.tokenizer} if sampling.stop else {}),
                return_dict_in_generate=True,
                output_scores=True,
            )
        tokens = drawn.sequences[:, len(prompt) :]
        scores = torch.stack(drawn.scores, 1).float().log_softmax(-1)
        logprobs = scores.gather(2, tokens[:, :, None])[:, :, 0]
        return [self._completion(*row, sampling) for row in zip(tokens.tolist(), logprobs.tolist(), strict=True)]

    def _completion(self, tokens: list[int], logprobs: list[float], sampling: Sampling) -> Completion:
        ends = self._network.generation_config.eos_token_id
        marks = {ends} if isinstance(ends, int) else set(ends or ())
        # What has ended before others is filled up.
        length = next((place + 1 for place, token in enumerate(tokens) if token in marks), len(tokens))
        ended = length < (sampling.max_tokens or MAX_TOKENS) or tokens[length - 1] in marks
        return Completion(tokens[:length], logprobs[:length], "stop" if ended else "length", [(0, 0)])
