"""Statements that are sent again and again: prepared where the connection allows it, and Django sees them."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.db import DataError, ProgrammingError, connection, transaction
from django.db.transaction import TransactionManagementError
from django.test.utils import CaptureQueriesContext

from tenantfair import prepared, runs
from tenantfair.claim import claim_due
from tests.factories import policy_in_force, run_in

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def preparing() -> Any:
    """A session that prepares, as a worker's own does."""
    connection.close()
    connection.ensure_connection()
    connection.connection.prepare_threshold = 5
    yield connection
    connection.close()


def prepared_statements() -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement FROM pg_prepared_statements")
        return [row[0] for row in cursor.fetchall()]


def ask(number: int) -> Any:
    columns, ((found,),) = prepared.fetch(
        connection, "SELECT %(number)s::integer + 1 AS next", {"number": number}
    )
    assert columns == ["next"]
    return found


def test_one_statement_serves_all_values(preparing: Any) -> None:
    assert [ask(number) for number in range(5)] == [1, 2, 3, 4, 5]

    assert prepared_statements() == ["SELECT $1::integer + 1 AS next"]


def test_nothing_is_prepared_where_the_host_does_not_allow_it() -> None:
    connection.close()

    assert [ask(number) for number in range(5)] == [1, 2, 3, 4, 5]

    assert prepared_statements() == []


def test_claim_and_finish_are_prepared(preparing: Any) -> None:
    policy_in_force()
    for _ in range(2):
        run_in("queued")
        leases = claim_due(1).leases
        assert len(runs.finish([runs.Completed(lease, None) for lease in leases])) == 1

    assert len(prepared_statements()) == 2


def test_execute_wrappers_and_the_query_log_see_the_statement() -> None:
    seen: list[str] = []

    def wrapper(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        seen.append(sql)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(wrapper), CaptureQueriesContext(connection) as log:
        ask(1)

    assert seen == ["SELECT %(number)s::integer + 1 AS next"]
    (logged,) = log.captured_queries
    assert "::integer + 1" in logged["sql"]


def test_errors_are_djangos() -> None:
    with pytest.raises(ProgrammingError):
        prepared.fetch(connection, "SELECT no_such_column")


def test_a_value_that_cannot_be_read_is_djangos_error_too() -> None:
    with pytest.raises(DataError):
        prepared.fetch(connection, "SELECT 'infinity'::timestamptz AS never")


def test_nothing_runs_in_a_transaction_that_is_broken() -> None:
    with transaction.atomic():
        transaction.set_rollback(True)
        with pytest.raises(TransactionManagementError):
            ask(1)


@pytest.mark.parametrize(
    "values",
    [
        [],
        [""],
        ["null", "NULL", '"quoted"', "back\\slash", "a,b", "{}", "[1, 2]", ' "x" ', "\\u00e9", "é\n\t"],
        ['{"a": "\\"\\\\"}'],
    ],
)
def test_texts_arrive_as_they_were(values: list[str]) -> None:
    sql, params = "SELECT %(values)s::text[] AS texts", {"values": prepared.text_array(values)}
    assert prepared.fetch(connection, sql, params) == (["texts"], [(values,)])


def test_uuids_arrive_as_they_were() -> None:
    values = [uuid.uuid4() for _ in range(3)] + [uuid.UUID(int=0)]
    sql, params = "SELECT %(values)s::uuid[] AS ids", {"values": prepared.uuid_array(values)}
    assert prepared.fetch(connection, sql, params) == (["ids"], [(values,)])
