"""Mutants: small changes to the shipped code that each break one rule, which named tests must notice.

`python -m tests.mutants` makes a copy of the project, applies one mutant at a time and runs the tests that it
names. A mutant that lets them all pass has survived: nothing tests the rule that it breaks.
"""
