"""Makes a Hugging Face folder of SmolLM2 from its GGUF: float32 weights, tokenizer and chat template.

``python -m tools.make_smollm2`` prints where the folder is kept; with a GGUF file it makes it. The package ``gguf``
must be importable. transformers does the same with ``accelerate``, which is not needed for so little.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np

from trinity_bus.config import Settings
from workers.demo.model import pretrained_folder

_NAMES: Final = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "blk": "model.layers",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def weights(file: Path, config: Any) -> dict[str, Any]:
    """Return the weights of a Llama in a GGUF, by the names that transformers gives them."""
    import torch
    from gguf import GGUFReader
    from gguf.quants import dequantize

    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    found = {}
    for tensor in GGUFReader(file).tensors:
        value = dequantize(tensor.data, tensor.tensor_type)
        words = tensor.name.split(".")
        if (of := heads.get(words[-2])) is not None:
            # Llama's rotary halves lie side by side in a GGUF, as pairs.
            value = value.reshape(of, -1, 2, value.shape[-1]).swapaxes(1, 2).reshape(value.shape)
        found[".".join(_NAMES.get(word, word) for word in words)] = torch.from_numpy(np.array(value, np.float32))
    return found


def make(file: Path, folder: Path) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    missing, unknown = model.load_state_dict(weights(file, config), strict=False, assign=True)
    if unknown or missing != ["lm_head.weight"]:
        raise SystemExit(f"{file} is not SmolLM2: it has no {missing}, but {unknown}")
    model.tie_weights()
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=".making-", dir=folder.parent))
    try:
        model.save_pretrained(made)
        tokenizer.save_pretrained(made)
        made.chmod(0o755)
        for each in made.iterdir():
            each.chmod(0o644)
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    place = pretrained_folder(Settings())
    if sys.argv[1:]:
        make(Path(sys.argv[1]), place)
    else:
        print(place)
