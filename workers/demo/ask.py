"""A question to a trained model: greedy, on the CPU, straight from its Hugging Face folder."""

from pathlib import Path

from trinity_bus.chat import renderer_for
from trinity_bus.errors import TrinityError


class NotAModelError(TrinityError, ValueError):
    """A folder holds no model that can be asked."""


def ask(model: Path, prompt: str, *, max_tokens: int) -> str:
    """Return the model's greedy answer.

    Args:
        model: A Hugging Face folder.
        prompt: Taken as it is, or put through the chat template where the model has one.
        max_tokens: Longest answer, in tokens.

    Raises:
        NotAModelError: The folder cannot be loaded.
    """
    if not (model / "config.json").is_file():
        raise NotAModelError(f"{model} is not a Hugging Face model folder: it has no config.json")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
        network = AutoModelForCausalLM.from_pretrained(model, local_files_only=True)
    except (OSError, ValueError) as error:
        raise NotAModelError(f"{model} cannot be loaded: {error}") from error
    if tokenizer.chat_template:
        token_ids = renderer_for(tokenizer).prompt([{"role": "user", "content": prompt}], None)
    else:
        token_ids = tokenizer.encode(prompt)
    with torch.inference_mode():
        whole = network.generate(
            input_ids=torch.tensor([token_ids]),
            attention_mask=torch.ones(1, len(token_ids), dtype=torch.long),
            max_new_tokens=max_tokens,
            do_sample=False,
        )
    return str(tokenizer.decode(whole[0, len(token_ids) :], skip_special_tokens=True))
