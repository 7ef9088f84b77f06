"""The tutorial, followed to the letter: its files in an empty folder, its commands on a real server."""

from __future__ import annotations

import doctest
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import django
import psycopg
import pytest
from django.db import connections
from psycopg import sql

from tests.docs_pages import ROOT, TUTORIAL, Block, blocks

DATABASE = "fairshop"
SECONDS = 60

# What the tutorial's last section tells readers on Django 5.2 to write instead.
BACKPORT = {
    "from django.tasks.exceptions import InvalidTask": "from tenantfair.compat import InvalidTask",
    "from django.tasks import": "from django_tasks import",
    '["tenantfair",': '["django_tasks", "tenantfair",',
}

PROGRAMS = {"python": (), "django-admin": ("-m", "django")}

_MATCHER = doctest.OutputChecker()


class Reader:
    """Does what the tutorial says, in one folder."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.environment = environment
        self.output = ""
        self.background: list[subprocess.Popen[str]] = []

    def follow(self, block: Block) -> None:
        match block.language:
            case "python":
                self.write(block)
            case "sh" if block.note == "background":
                self.background += [self.start(command) for command in block.commands]
            case "sh":
                self.output = "".join(self.run(command, block.where) for command in block.commands)
            case "text":
                assert _MATCHER.check_output(block.text, self.output, doctest.ELLIPSIS), (
                    f"{block.where} says\n{block.text}\nbut it is\n{self.output}"
                )
            case other:
                pytest.fail(f"{block.where}: nobody can follow {other}")

    def write(self, block: Block) -> None:
        assert block.file is not None, f"{block.where} names no file"
        path, adds = block.file
        text = block.text
        if django.VERSION < (6,):
            for written, instead in BACKPORT.items():
                text = text.replace(written, instead)
        with (self.folder / path).open("a" if adds else "w", encoding="utf-8") as file:
            file.write(f"\n{text}" if adds else text)

    def run(self, command: str, where: str) -> str:
        if command == f"createdb {DATABASE}":
            return ""  # by the fixture, as a server need not come with its client programs
        done = subprocess.run(
            self.argv(command),
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{where}: {command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def start(self, command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.argv(command),
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def argv(self, command: str) -> list[str]:
        program, *arguments = shlex.split(command)
        return [sys.executable, *PROGRAMS[program], *arguments]


@pytest.fixture
def reader(tmp_path: Path, transactional_db: None) -> Iterator[Reader]:
    parameters = connections["default"].get_connection_params()
    server = {
        name: str(parameters[name]) for name in ("host", "port", "user", "password") if parameters.get(name)
    }
    drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(DATABASE))
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("DJANGO_", "PG"))
    }
    environment |= {f"PG{name.upper()}": value for name, value in server.items()}
    environment |= {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    with psycopg.connect(**server, dbname="postgres", autocommit=True) as connection:
        connection.execute(drop)
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))
        following = Reader(tmp_path, environment)
        # As at a terminal. Tests in a script's background ignore it, and children inherit that.
        inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            yield following
        finally:
            signal.signal(signal.SIGINT, inherited)
            for process in following.background:
                end(process)
            connection.execute(drop)


def end(process: subprocess.Popen[str]) -> None:
    with process:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def test_the_tutorial_works_as_it_is_written(reader: Reader) -> None:
    for block in blocks(TUTORIAL):
        if block.is_run:
            reader.follow(block)

    (worker,) = reader.background
    assert worker.stdout is not None
    impatience = threading.Timer(SECONDS, worker.kill)
    impatience.start()
    assert "quiet: statement 1\n" in worker.stdout
    impatience.cancel()
    # Ctrl-C reaches the whole foreground group, the reloader as well.
    os.killpg(worker.pid, signal.SIGINT)
    assert worker.wait(SECONDS) == 0
