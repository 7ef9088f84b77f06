"""What the doctor, and the start of a worker, make of a database."""

from tests.mutants.mutant import Mutant

SHAPE = "sql/schema_shape.sql"
SESSIONS = "sql/doctor_sessions.sql"
QUOTING = "test_schema_shape.py::test_the_shape_does_not_depend_on_how_names_are_quoted"

MUTANTS = (
    Mutant(
        name="shape-of-types-as-the-session-quotes-them",
        file=SHAPE,
        old="THEN replace(format_type(type.oid, NULL), '\"', '')",
        new="THEN format_type(type.oid, NULL)",
        breaks="a schema fits whatever quote_all_identifiers says",
        killed_by=(QUOTING,),
    ),
    Mutant(
        name="shape-of-types-without-their-schema",
        file=SHAPE,
        old="ELSE namespace.nspname || '.' || type.typname",
        new="ELSE type.typname",
        breaks="a host's type of the same name makes another function",
        killed_by=(
            "test_schema_shape.py::test_a_type_of_the_hosts_that_bears_the_name_of_a_built_in_is_another_type",
        ),
    ),
    Mutant(
        name="shape-of-paths-as-the-session-quotes-them",
        file=SHAPE,
        old="""('"' || replace(namespace.nspname, '"', '""') || '"')""",
        new="(quote_ident(namespace.nspname))",
        breaks="a schema fits whatever quote_all_identifiers says",
        killed_by=(
            QUOTING,
            "test_schema_shape.py::test_a_path_that_the_server_quoted_name_by_name_is_right",
        ),
    ),
    Mutant(
        name="shape-of-paths-without-quotes",
        file=SHAPE,
        old="(CASE WHEN namespace.nspname ~ '^[a-z_][a-z0-9_]*$' THEN namespace.nspname END)",
        new="(lower(namespace.nspname))",
        breaks="a path is right only if it leads to the schema",
        killed_by=("test_schema_shape.py::test_a_path_that_only_looks_like_the_schemas_is_not_its_path",),
    ),
    Mutant(
        name="doctor-overlooks-who-holds-the-door-idle",
        file=SESSIONS,
        old="clock_timestamp() - coalesce(activity.xact_start, activity.state_change)) AS age",
        new="clock_timestamp() - activity.xact_start) AS age",
        breaks="who holds the door is named, in a transaction or not",
        killed_by=("test_doctor_sessions.py::test_who_stands_in_the_door_without_a_transaction_is_named",),
    ),
    Mutant(
        name="doctor-trusts-everybody-who-may-create",
        file="sql/doctor_creators.sql",
        old="AND grantee.rolsuper IS NOT TRUE",
        new="AND NOT grantee.rolsuper",
        breaks="PUBLIC with CREATE on the schema is named",
        killed_by=(
            "test_commands_doctor.py::test_roles_that_may_create_in_the_schema_are_named_and_owners_are_not",
        ),
    ),
    Mutant(
        name="doctor-locks-counts-backwards",
        file="sql/doctor_lock_counts.sql",
        old="ORDER BY schedule.scope_key",
        new="ORDER BY schedule.scope_key DESC",
        breaks="a repair locks counts in the order of a commit (decision 0008)",
        killed_by=(
            "test_doctor_repair.py::test_a_commit_that_holds_an_earlier_count_does_not_meet_a_repair_head_on",
        ),
    ),
)
