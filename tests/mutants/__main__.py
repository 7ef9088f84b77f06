"""`python -m tests.mutants`: apply the mutants one by one, and fail when one of them survives."""

from __future__ import annotations

import argparse
import fnmatch
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence

from tests.mutants.catalog import ALL
from tests.mutants.mutant import Mutant
from tests.mutants.servers import databases
from tests.mutants.verdict import Verdict, verdicts


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    # What has been copied is removed on every way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    chosen = [mutant for mutant in ALL if any(fnmatch.fnmatch(mutant.name, each) for each in options.only)]
    if not chosen:
        print("no mutant has such a name", file=sys.stderr)
        return 2
    if options.list:
        for mutant in chosen:
            print(_description(mutant))
        return 0
    started = time.monotonic()
    counted: Counter[str] = Counter()
    with databases(options.jobs) as urls:
        for verdict in verdicts(chosen, urls):
            counted[verdict.word] += 1
            print(_line(verdict), flush=True)
    print(f"{counted['killed']} of {len(chosen)} mutants killed, {time.monotonic() - started:.0f} s")
    return 0 if counted["killed"] == len(chosen) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument(
        "--list", action="store_true", help="name them, the rule of each and its tests, and run nothing"
    )
    parser.add_argument(
        "--only", nargs="+", default=["*"], metavar="NAME", help="these; shell patterns are fine"
    )
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="how many at once (default: 2)")
    return parser


def _description(mutant: Mutant) -> str:
    tests = "".join(f"\n    {test}" for test in mutant.killed_by)
    return f"{mutant.name}  ({mutant.file})\n  {mutant.breaks}{tests}"


def _line(verdict: Verdict) -> str:
    mutant = verdict.mutant
    told = f"{verdict.word:8} {verdict.seconds:5.1f} s  {mutant.name}: {mutant.breaks}"
    if verdict.killer is not None:
        return f"{told}\n                  by {verdict.killer}"
    return told if verdict.error is None else f"{told}\n                  {verdict.error}"


if __name__ == "__main__":
    sys.exit(main())
