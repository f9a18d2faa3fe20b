import subprocess
import sys
from pathlib import Path

import pytest

from trinity_bus.chat.encoding import load_tokenizer
from trinity_bus.errors import ConfigError
from workers.demo.model import make_model


def test_a_tokenizer_is_loaded_without_torch_which_can_still_be_imported(tmp_path: Path) -> None:
    make_model(tmp_path, seed=0)
    program = (
        "import sys, importlib.util, inspect\n"
        "from trinity_bus.chat.rendering import NOT_OPTIONS\n"
        "from trinity_bus.chat.encoding import load_tokenizer\n"
        f"tokenizer = load_tokenizer({str(tmp_path)!r}, {{'enable_thinking': False}})\n"
        "assert tokenizer.chat_template_options == {'enable_thinking': False}\n"
        "assert set(inspect.signature(tokenizer.apply_chat_template).parameters) - {'kwargs'} <= NOT_OPTIONS\n"
        "assert 'torch' not in sys.modules and importlib.util.find_spec('torch') is not None\n"
        "print(tokenizer.decode(tokenizer.encode('copy 3 1 4 ='), skip_special_tokens=True))\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert (ended.stdout, ended.stderr) == ("copy 3 1 4 =\n", "")


def test_a_tokenizer_is_loaded_where_something_of_transformers_was_imported_before(tmp_path: Path) -> None:
    make_model(tmp_path, 0)
    script = (
        "import sys, transformers.utils\n"
        "from trinity_bus.chat.encoding import load_tokenizer\n"
        "load_tokenizer(sys.argv[1])"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)


@pytest.mark.parametrize("damaged", ["{", "[]", '{"eos_token": ["a", "b"]}'])
def test_a_folder_whose_tokenizer_cannot_be_read_is_refused_with_one_line(tmp_path: Path, damaged: str) -> None:
    make_model(tmp_path, 0)
    (tmp_path / "tokenizer_config.json").write_text(damaged)
    with pytest.raises(ConfigError, match="has no tokenizer that can be read"):
        load_tokenizer(str(tmp_path))
