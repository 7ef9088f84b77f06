"""The demo's kind of load on real workers, with `manage.py tenantfair_certify` beside it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

import psycopg

from example_project.engines import TENANT_FAIR, site
from example_project.processes import MANAGE
from tenantfair.sql import install
from tests.claim_support import SHIPPED

_DURABLE = re.compile(r"scan_ring_position = v_cursor,\s+scan_laps = v_laps,")
_SECONDS = 60


@dataclass(frozen=True)
class Certified:
    """How the command ended, what it printed as JSON, and what it left of itself in the database."""

    code: int
    document: dict[str, Any]
    said: str
    left: int

    def __str__(self) -> str:
        windows, ratios = self.document["windows"], self.document["ratios"]
        shares = ", ".join(f"{what} {share:.2f}" for what, share in ratios.items())
        return (
            f"{windows['with_competitors']} eligible windows in {self.document['calls']} claims;"
            f" most observed of the bound: {shares}; {self.document['violation_count']} violations"
        )


def certify_demo(server_url: str, *, noisy: int, quiet: int, each: int, durable: bool = True) -> Certified:
    """Have two workers serve one noisy customer and then, while it is recorded, many quiet ones as well."""
    purpose = "certify" if durable else "forgetful"
    with site(server_url, TENANT_FAIR, purpose=purpose, cap=8, recorded=False) as place:
        if not durable:
            with psycopg.connect(place.url, autocommit=True) as connection:
                connection.execute(install("tenantfair_claim.v1").replace(SHIPPED, forgetful()))
        place.manage("load", f"--noisy={noisy}", "--quiet=0")
        with place.working(processes=2, threads=8), place.connection() as connection:
            _until(connection, "SELECT EXISTS (SELECT FROM tenantfair_run WHERE finished_at IS NOT NULL)")
            command = [
                sys.executable, str(MANAGE), "tenantfair_certify", f"--seconds={_SECONDS}", "--format=json",
                "--limit=100",
            ]  # fmt: skip
            environment = {**os.environ, **place.environment}
            with subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            ) as certify:
                try:
                    _until(
                        connection,
                        "SELECT count(*) = 8 FROM pg_trigger WHERE tgname ^@ 'tenantfair_certify_'",
                    )
                    place.manage("load", "--noisy=20", f"--quiet={quiet}", f"--each={each}")
                    _until(
                        connection,
                        "SELECT NOT EXISTS (SELECT FROM tenantfair_run WHERE finished_at IS NULL"
                        " AND tenant_id <> 'noisy')",
                    )
                    # A signal ends the recording; what has been recorded is judged.
                    certify.terminate()
                    out, err = certify.communicate(timeout=_SECONDS)
                finally:
                    certify.kill()
            left = connection.execute(
                "SELECT count(*) FROM pg_class WHERE relname ^@ 'tenantfair_certify_'"
            ).fetchone()
    return Certified(certify.returncode, json.loads(out) if out else {}, err, left[0])


def forgetful() -> str:
    """The shipped function, which does not write its cursor any more."""
    text, number = _DURABLE.subn("", SHIPPED)
    assert number == 1
    return text


def _until(connection: psycopg.Connection, condition: str) -> None:
    """Poll for what another process does."""
    deadline = time.monotonic() + _SECONDS
    while not connection.execute(condition).fetchone()[0]:
        assert time.monotonic() < deadline, f"never happened: {condition}"
        time.sleep(0.05)
