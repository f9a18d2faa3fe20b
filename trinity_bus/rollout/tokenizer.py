"""The model's tokenizer, for workflows, without torch.

transformers needs torch for models only, but imports it wherever it finds it: 15 s and 600 MiB for each process that
tokenizes. While it is imported here, it finds none. A process that has imported torch before keeps it.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from trinity_bus.chat import EndingTokenizer
from trinity_bus.chat.encoding import Encoder, Writing
from trinity_bus.chat.renderer import TemplateOptions, read_options

_AS_IT_COMES: Final = Writing()


def load_tokenizer(
    model_path: str, options: TemplateOptions | None = None, how: Writing = _AS_IT_COMES
) -> EndingTokenizer:
    """Return the tokenizer of a Hugging Face model; OSError, ValueError, ChatError.

    ``options`` of its chat template (``mesh.chat_template_options``), and ``how``, are for ``renderer_for`` to find.
    """
    options = read_options(options or {})
    # Its threads would not survive a fork, and it says so at length.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if Path(model_path).is_dir():
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with without_torch():
        from transformers import AutoTokenizer

        # Left out, it asks at the terminal whether code of the folder may run.
        tokenizer: Any = AutoTokenizer.from_pretrained(model_path, trust_remote_code=False)
    tokenizer.chat_template_options = options
    tokenizer.encoder_of_text = Encoder(tokenizer, how)
    loaded: EndingTokenizer = tokenizer
    return loaded


@contextlib.contextmanager
def without_torch() -> Iterator[None]:
    """Within the block, whoever looks for torch finds none; a process that has imported it keeps it.

    Where transformers was imported before, it remembers whether there is a torch, and imports it when it needs it.
    """
    if "torch" in sys.modules or "transformers" in sys.modules:
        yield
        return
    # It would say that models are not available without torch.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    # None is how an import is forbidden; whoever looks whether there is such a module finds none.
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["torch"]
