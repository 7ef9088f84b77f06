"""What a recording is told, and by whom."""

from tests.mutants.mutant import Mutant

INSTALL = "sql/certify_install.sql"
FOREIGN = "certify/test_recording.py::test_nothing_is_recorded_by_our_functions_on_a_table_of_somebody_else"
WITHOUT_EFFECT = (
    "certify/test_windows.py::test_scope_that_was_locked_by_a_change_of_no_effect_may_be_inspected_in_vain"
)

MUTANTS = (
    Mutant(
        name="recording-of-a-table-of-somebody-else",
        file=INSTALL,
        old="TG_RELID <> 'tenantfair_partition'::regclass::oid",
        new="false",
        times=2,
        breaks="nothing but the tables themselves writes into a recording (decision 0013)",
        killed_by=(FOREIGN,),
    ),
    Mutant(
        name="recording-made-void-by-anybody",
        file=INSTALL,
        old="    FROM PUBLIC;\n",
        new="    FROM pg_monitor;\n",
        breaks="nothing but the tables themselves writes into a recording (decision 0013)",
        killed_by=("certify/test_recording.py::test_nobody_else_can_make_a_recording_void",),
    ),
    Mutant(
        name="recorder-calls-an-overload",
        file=INSTALL,
        old="v_step := pg_catalog.nextval('tenantfair_certify_steps'::regclass);",
        new="v_step := nextval('tenantfair_certify_steps');",
        times=4,
        breaks="what runs as the owner calls nothing that somebody else has made (decision 0013)",
        killed_by=(
            "certify/test_recording.py::test_no_overload_in_the_schema_is_called_by_what_runs_as_the_owner",
        ),
    ),
    Mutant(
        name="change-of-runs-without-effect-unrecorded",
        file=INSTALL,
        old=" OR run.state IN ('queued', 'ready', 'claimed')",
        new="",
        breaks="a scope that others had locked is not taken for one passed by (item 156)",
        killed_by=(WITHOUT_EFFECT,),
    ),
    Mutant(
        name="change-of-a-partition-without-effect-unrecorded",
        file=INSTALL,
        old="GROUP BY part.scope_key;",
        new="GROUP BY part.scope_key HAVING sum(part.epoch)::bigint <> 0;",
        breaks="a scope that others had locked is not taken for one passed by (item 156)",
        killed_by=(WITHOUT_EFFECT,),
    ),
)
