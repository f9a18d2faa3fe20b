"""Tests here share ``record_strategies.py``, which importlib mode does not find by itself."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
