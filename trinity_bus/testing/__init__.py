"""Testing of users' workflows: an engine with scripted responses. No model, no broker, no GPU.

:func:`run_workflow` runs a workflow as an explorer would, and refuses what an explorer would refuse. The engine and the
tokenizer are FAKES: what they say means nothing.
"""

from trinity_bus.testing.scripted import CharacterTokenizer, OutOfAnswersError, Request, ScriptedEngine, run_workflow

__all__ = ["CharacterTokenizer", "OutOfAnswersError", "Request", "ScriptedEngine", "run_workflow"]
