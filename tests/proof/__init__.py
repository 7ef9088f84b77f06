"""`make proof`: everything that speaks for the correctness of the package, run and counted in one table.

`python -m tests.proof` runs the parts one after the other, each in a process of its own on a private server,
notes each finished unit of work in `.proof/`, goes on where it was interrupted and exits 1 when anything was
violated. What could not be run is said to be "not run" and counts as nothing.
"""
