"""The parts of ``benchmarks/weight_faults.py``, which tests use as well."""
