"""How a recording is understood."""

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        name="change-of-what-no-claim-takes-is-an-excuse",
        file="certify/replay.py",
        old='(at < expired if state == "claimed" else at <= now)',
        new="at <= now",
        breaks="a scope inspected in vain for no reason is a broken rule (item 155)",
        killed_by=("certify/test_windows.py::test_change_of_what_no_claim_takes_is_no_excuse",),
    ),
)
