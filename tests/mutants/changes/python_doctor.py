"""The order of a repair's steps."""

from tests.mutants.mutant import Mutant

REPAIR = "doctor/repair.py"

MUTANTS = (
    Mutant(
        name="doctor-replaces-orphans-before-counts-are-locked",
        file=REPAIR,
        old="        self._recount([scope for scope, _ in drifted])\n"
        "        self._replace([scope for scope, is_orphan in drifted if is_orphan])\n",
        new="        self._recount([scope for scope, is_orphan in drifted if is_orphan])\n"
        "        self._replace([scope for scope, is_orphan in drifted if is_orphan])\n"
        "        self._recount([scope for scope, _ in drifted])\n",
        breaks="a repair locks counts once, in the order of a commit (decision 0008)",
        killed_by=(
            "test_doctor_repair.py::test_a_commit_that_holds_an_earlier_count_does_not_meet_a_repair_head_on",
        ),
    ),
    Mutant(
        name="doctor-locks-counts-before-partitions",
        file=REPAIR,
        old='        self._change("partition_added", "doctor_add_partitions", scopes=None)\n',
        new='        self._recount([scope for scope, _ in self._execute(load("doctor_drifted"))])\n'
        '        self._change("partition_added", "doctor_add_partitions", scopes=None)\n',
        breaks="a repair adds partitions before it locks counts, as a commit does (decision 0008)",
        killed_by=(
            "test_doctor_repair.py::test_a_commit_that_adds_a_partition_does_not_meet_a_repair_head_on",
        ),
    ),
)
