"""The process of one part: `python -m tests.proof.child MODULE FD [--quick]`, the finished units on stdin.

Writes each row as a line of JSON to the descriptor FD and, when the part has gone through to its end, `null`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("module")
    parser.add_argument("descriptor", type=int)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(arguments)
    done = frozenset(json.load(sys.stdin))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    part = importlib.import_module(options.module)
    with os.fdopen(options.descriptor, "w", encoding="utf-8") as out:
        for row in part.rows(quick=options.quick, done=done):
            print(json.dumps(asdict(row)), file=out, flush=True)
        print("null", file=out, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
