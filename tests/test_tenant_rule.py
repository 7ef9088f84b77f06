"""What a tenant id may be: one rule, drawn alike by Python and by the database."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import errors

from tenantfair.exceptions import InvalidTenant
from tenantfair.tenants import validate_tenant
from tests.rows import Session, insert_run, sessions

WRONG_TENANTS = [
    *("", " ", " a", "a ", "\ta", "a\n", "a\nb"),
    *("\x01", "a\x1fb", "\x7f", "\x80", "\x85a", "a\x9f"),
    *("\u00a0a", "a\u2003", "\u3000", "\u1680x", "x\u2028", "\u2029x"),
    # not in form NFC
    *("e\u0301", "\u212b"),
    # 256 bytes
    *("a" * 256, "\u00e9" * 128),
]
RIGHT_TENANTS = [
    "a",
    "A b",
    "é",
    "a" * 255,
    "é" * 127 + "a",
    "\U0001f600",
    "a\u200bb",
    "0",
    "NULL",
    "a'b\\c%",
    "ß",
]


@pytest.fixture
def db(transactional_db: None) -> Iterator[Session]:
    with sessions() as another:
        yield another()


@pytest.mark.conformance(5)
@pytest.mark.parametrize("tenant", WRONG_TENANTS, ids=ascii)
@pytest.mark.parametrize("state", ["queued", "completed"])
def test_malformed_tenant_is_refused_by_python_and_by_the_database(
    db: Session, tenant: str, state: str
) -> None:
    with pytest.raises(InvalidTenant):
        validate_tenant(tenant)
    with pytest.raises(errors.CheckViolation) as caught:
        insert_run(db, tenant, state)
    assert caught.value.diag.constraint_name == "tenantfair_run_tenant"
    if tenant:
        with pytest.raises(errors.CheckViolation):
            db.execute("INSERT INTO tenantfair_partition (scope_key) VALUES (%s)", [tenant])
    assert db.execute("SELECT count(*) FROM tenantfair_run").fetchone() == (0,)


@pytest.mark.conformance(5)
@pytest.mark.parametrize("tenant", RIGHT_TENANTS, ids=ascii)
def test_well_formed_tenant_is_accepted_by_both(db: Session, tenant: str) -> None:
    assert validate_tenant(tenant) == tenant
    insert_run(db, tenant)
    assert db.execute("SELECT scope_key FROM tenantfair_partition").fetchall() == [(tenant,)]


@pytest.mark.conformance(5)
def test_python_and_the_database_draw_the_same_line(db: Session) -> None:
    """Each character at the start, inside and at the end of a tenant id."""
    assigned = [chr(code) for code in range(1, 0x3100) if unicodedata.category(chr(code)) != "Cn"]
    tenants = [tenant for char in assigned for tenant in (char, f"{char}a", f"a{char}b", f"a{char}")]
    accepted = db.execute(
        "SELECT tenant FROM unnest(%s::text[]) AS given (tenant)"
        " WHERE tenantfair_tenant_is_well_formed(tenant)",
        [tenants],
    ).fetchall()
    assert {tenant for (tenant,) in accepted} == set(filter(is_valid, tenants))


def is_valid(tenant: str) -> bool:
    try:
        validate_tenant(tenant)
    except InvalidTenant:
        return False
    return True


def test_text_that_postgresql_cannot_hold_is_refused(db: Session) -> None:
    with pytest.raises(InvalidTenant):
        validate_tenant("a\x00b")
    with pytest.raises(psycopg.DataError):
        insert_run(db, "a\x00b")
