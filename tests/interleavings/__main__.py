"""`python -m tests.interleavings [CASE ...]`: walk cases whole, to look into what comes of them."""

from __future__ import annotations

import argparse
import os
import sys
import time
from itertools import product


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="S1, 'S4 yielded', ...: all cases whose name begins so")
    parser.add_argument("--limit", type=int, default=12_870)
    parser.add_argument("--sample", type=int)
    parser.add_argument("--ends", nargs="*", default=["CC"], help="how A, B, C end: C, R or T for each")
    options = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    import django

    django.setup()
    from tests.interleavings.actors import COMMIT, ROLLBACK, TERMINATE
    from tests.interleavings.bed import database
    from tests.interleavings.explore import Explorer
    from tests.interleavings.seen import End
    from tests.interleavings.specs import CASES
    from tests.interleavings.stage import Stage

    def parse(letter: str) -> End:
        return End({"C": COMMIT, "R": ROLLBACK, "T": TERMINATE}[letter])

    chosen = [
        case
        for case in CASES.values()
        if not options.names
        or any(case.name == name or case.name.startswith(f"{name} ") for name in options.names)
    ]
    failures = 0
    with database(f"interleavings_{os.getpid()}") as name, Stage(name) as stage:
        for case, ends in product(chosen, options.ends):
            explorer = Explorer(stage, case, dict(zip(case.sessions, map(parse, ends), strict=False)))
            started = time.monotonic()
            walk = explorer.sample(options.sample, 1) if options.sample else explorer.all(options.limit)
            seconds = time.monotonic() - started
            failures += len(walk.failures)
            print(
                f"{case.name} {ends}: {case.title}: {len(walk.keys)} distinct of {walk.played} played"
                f"{'' if walk.is_whole else ' (not all)'}, {walk.played / seconds:.0f}/s,"
                f" {len(walk.failures)} failures",
                flush=True,
            )
            for outcome, order in sorted(walk.outcomes.items()):
                print(f"    {outcome}   {order}")
            for failure in walk.failures[:3]:
                print(failure.as_test(), failure.trace)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
