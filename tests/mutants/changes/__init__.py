"""The mutants themselves: one module for each part of the package, one tuple `MUTANTS` in each."""
