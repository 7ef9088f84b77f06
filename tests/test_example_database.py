"""Which PostgreSQL the example takes: the one named, or one that it keeps."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import psycopg
import pytest

from example_project.database import scratch_database, with_database

ROOT = Path(__file__).resolve().parent.parent

# What `manage.py` does before any command, twice: the second process finds the server of the first.
KEEP = """
import os, subprocess, sys
from pathlib import Path
import psycopg
from example_project.database import use_lasting_database

folder = Path(sys.argv[1])
use_lasting_database(folder)
if len(sys.argv) == 2:
    with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS kept (at timestamptz DEFAULT now())")
        connection.execute("INSERT INTO kept DEFAULT VALUES")
    del os.environ["DATABASE_URL"]
    subprocess.run([sys.executable, "-c", os.environ["KEEP"], str(folder), "second"], check=True)
else:
    with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
        print(connection.execute("SELECT count(*) FROM kept").fetchone()[0])
"""


@pytest.mark.parametrize(
    ("url", "name", "expected"),
    [
        ("postgresql:///a", "b", "postgresql:///b"),
        ("postgres://me:secret@host:5433/a", "b", "postgresql://me:secret@host:5433/b"),
        (
            "postgresql://me@/a?host=/run/pg&sslmode=disable",
            "b",
            "postgresql://me@/b?host=/run/pg&sslmode=disable",
        ),
        ("psql://me@host/a", "b", "postgresql://me@host/b"),
    ],
)
def test_a_url_is_turned_to_another_database(url: str, name: str, expected: str) -> None:
    assert with_database(url, name) == expected


def test_a_scratch_database_is_gone_after_its_block_whoever_still_uses_it() -> None:
    with scratch_database(os.environ["DATABASE_URL"], "trial") as url:
        holder = psycopg.connect(url)
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)
    holder.close()


def test_the_kept_database_outlives_its_server_and_is_shared_while_it_runs() -> None:
    """Each time round, the second process counts what the first of every round has written."""
    # Not `tmp_path`, which the account that a root's server runs as could not reach.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        assert [count_in(folder) for _ in range(2)] == ["1\n", "2\n"]


def count_in(folder: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    return subprocess.run(
        [sys.executable, "-c", KEEP, folder],
        cwd=ROOT,
        env=environment | {"KEEP": KEEP},
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    ).stdout
