"""`manage.py tenantfair_certify`: what it prints, how it ends."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connections

from tests.certify.demo_load import forgetful
from tests.certify.scene import claim
from tests.claim_support import Bench, bench
from tests.rows import in_background, result

pytestmark = pytest.mark.django_db(transaction=True)

TRIGGERS = "SELECT count(*) = 8 FROM pg_trigger WHERE starts_with(tgname, 'tenantfair_certify_')"


@pytest.fixture
def domain() -> Iterator[Bench]:
    with bench() as found:
        found.policy(50)
        found.queued("hot", 40)
        found.queued("target", 40)
        yield found


def run(*arguments: str, expected: int = 0) -> str:
    """Run the command, see it end with a code, and return what it printed."""
    out = StringIO()
    code = 0
    try:
        call_command("tenantfair_certify", *arguments, stdout=out)
    except CommandError as error:
        code = error.returncode
    assert code == expected, out.getvalue()
    return out.getvalue()


class Claiming:
    """Claims in a thread, as soon as something records."""

    def __init__(self, domain: Bench, function: str, calls: int) -> None:
        self.domain, self.function, self.left = domain, function, calls
        self.given_up = threading.Event()

    def __call__(self) -> None:
        session = self.domain.session()
        while not session.execute(TRIGGERS).fetchone()[0]:
            if self.given_up.wait(0.01):
                return
        # The opening snapshot comes after the last trigger.
        while self.left and not self.given_up.wait(0.02):
            claim(self.domain, function=self.function, by=session)
            self.left -= 1


def beside(
    domain: Bench, *arguments: str, function: str = "tenantfair_claim", calls: int = 30, expected: int = 0
) -> str:
    """The command while somebody claims."""
    claiming = Claiming(domain, function, calls)
    background = in_background(claiming)
    try:
        return run("--seconds=2", *arguments, expected=expected)
    finally:
        claiming.given_up.set()
        result(background)


def test_a_sound_domain_is_certified_and_exits_0(domain: Bench) -> None:
    lines = beside(domain).splitlines()
    assert lines[0].startswith("recorded ")
    assert lines[1].split() == [
        "SCOPE",
        "WINDOWS",
        "GRANTS",
        "OUTCOMES",
        "CALLS",
        "RATIO",
        "A",
        "H",
        "S",
        "L",
    ]
    assert {line.split()[0] for line in lines[2:4]} == {"hot", "target"}
    for line in lines[2:4]:
        assert line.split()[2:] == ["1/1", "1/8", "2/2", "1.00", "2", "2", "32", "0"]
    assert lines[-1].startswith("certified: ")
    assert "grants 1.00, outcomes 0.12, calls 1.00" in lines[-1]


def test_the_json_document_carries_every_figure(domain: Bench) -> None:
    found: dict[str, Any] = json.loads(beside(domain, "--format=json"))
    assert found["database"] == "default"
    assert found["certified"] is True
    assert found["ratio"] == 1
    assert found["ratios"] == {"grants": 1, "outcomes": 0.125, "calls": 1}
    assert found["violations"] == []
    assert found["violation_count"] == 0
    assert found["windows"]["with_competitors"] == found["windows"]["eligible"] > 5
    assert found["windows"]["ineligible"].keys() == {"began", "open"}
    one = found["scopes"][0]
    assert one["seen"] == {"grants": 1, "outcomes": 1, "calls": 2}
    assert one["bound"] == {"grants": 1, "outcomes": 8, "calls": 2}
    assert {key: one[key] for key in "AHSL"} == {"A": 2, "H": 2, "S": 32, "L": 0}
    assert len(found["claim_function"]) == 64


def test_a_build_that_breaks_a_rule_exits_1(domain: Bench) -> None:
    function = domain.function("tests_altered", forgetful())
    printed = beside(domain, function=function, calls=5, expected=1)
    assert (
        "BROKEN: a claim moves the cursor in the transaction of its grants: 1 outcomes, 1 epochs, hot"
        in printed
    )
    assert printed.splitlines()[-1].startswith("NOT certified: ")


def test_where_nothing_is_claimed_nothing_is_certified_and_it_exits_2(domain: Bench) -> None:
    printed = run("--seconds=0.2", expected=2)
    assert printed.splitlines()[-1].startswith("nothing to certify")


def test_scopes_can_be_hidden_and_left_out(domain: Bench) -> None:
    printed = beside(domain, "--anonymous", "--limit=1")
    assert "hot" not in printed
    assert "target" not in printed
    assert "and 1 more scopes, each further from its bound" in printed


def test_a_domain_without_turns_exits_2() -> None:
    with bench() as domain:
        domain.pristine()
        run("--seconds=0.2", expected=2)


def test_clean_says_what_it_did(domain: Bench) -> None:
    assert run("--clean") == "nothing to remove\n"
    domain.db.execute("CREATE TABLE tenantfair_certify_journal ()")
    assert run("--clean") == "the recording was removed\n"
    assert run("--clean") == "nothing to remove\n"


def test_a_role_without_rights_exits_78(domain: Bench) -> None:
    domain.db.execute("CREATE ROLE tf_certify")
    try:
        domain.db.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO tf_certify")
        with connections["default"].cursor() as cursor:
            cursor.execute("SET ROLE tf_certify")
        run("--seconds=0.2", expected=78)
    finally:
        with connections["default"].cursor() as cursor:
            cursor.execute("RESET ROLE")
        domain.db.execute("DROP OWNED BY tf_certify")
        domain.db.execute("DROP ROLE tf_certify")


@pytest.mark.parametrize(
    "argument", ["--seconds=0", "--seconds=3601", "--seconds=x", "--calls=0", "--rows=-1", "--failures=x"]
)
def test_wrong_usage_exits_2(argument: str) -> None:
    with pytest.raises(CommandError, match="argument --"):
        call_command("tenantfair_certify", argument)
