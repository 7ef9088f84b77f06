"""Measures what claiming, enqueueing and finishing cost, beside the floor of the machine it runs on.

`make bench` runs everything, `make bench QUICK=1` the short half; `python -m tests.benchmarks --help` tells
the rest. Nothing here is collected by pytest; `tests/test_benchmarks.py` runs the smallest case.
"""
