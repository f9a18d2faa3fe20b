import subprocess
import sys
from pathlib import Path

import pytest

from workers.demo.model import make_model

ALONE = """
import sys, importlib.util, inspect
from trinity_bus.chat.renderer import NOT_OPTIONS
from trinity_bus.rollout.tokenizer import load_tokenizer
tokenizer = load_tokenizer(sys.argv[1], {'enable_thinking': False})
assert tokenizer.chat_template_options == {'enable_thinking': False}
assert set(inspect.signature(tokenizer.apply_chat_template).parameters) - {'kwargs'} <= NOT_OPTIONS
assert 'torch' not in sys.modules and importlib.util.find_spec('torch') is not None
print(tokenizer.decode(tokenizer.encode('copy 3 1 4 ='), skip_special_tokens=True))
"""


@pytest.mark.parametrize("before", ["", "import transformers.utils"], ids=["alone", "after a part of transformers"])
def test_a_tokenizer_is_loaded_without_torch_which_can_still_be_imported(tmp_path: Path, before: str) -> None:
    command = [sys.executable, "-c", before + ALONE, str(make_model(tmp_path, seed=0))]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (ended.stdout, ended.stderr) == ("copy 3 1 4 =\n", "")
