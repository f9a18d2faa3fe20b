"""Fuzzing: damaged inputs for every decoder, and for the coordinator's machine. Run by ``make fuzz``, and in CI.

What is asked of each input: an answer or an error of the type that the decoder promises; less than ``LIMIT_S`` of
processor time; and that memory does not grow with the number of inputs.
"""
