"""Which PostgreSQL the example works on: the one DATABASE_URL names, or one of its own."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from example_project.postgres import PrivateServer

_VARIABLE = "DATABASE_URL"
_LASTING = "example"
# Every server has it, whereas the one that a URL names may not exist yet.
_MAINTENANCE = "postgres"
_STATEMENTS = Path(__file__).with_name("sql")


def load_sql(name: str) -> str:
    """Return the SQL in the file `name`."""
    return (_STATEMENTS / f"{name}.sql").read_text()


@contextmanager
def server() -> Iterator[str]:
    """Yield the URL of a server to make databases on: DATABASE_URL's, else one that ends with the block."""
    given = os.environ.get(_VARIABLE)
    if given:
        yield given
        return
    with PrivateServer() as private:
        yield private.url()


@contextmanager
def scratch_database(server_url: str, purpose: str) -> Iterator[str]:
    """Yield the URL of a new, empty database on the same server; it is dropped when the block ends."""
    name = f"tenantfair_{purpose}_{os.getpid()}"
    identifier = sql.Identifier(name)
    drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(identifier)
    with psycopg.connect(with_database(server_url, _MAINTENANCE), autocommit=True) as connection:
        connection.execute(drop)
        connection.execute(sql.SQL("CREATE DATABASE {}").format(identifier))
        try:
            yield with_database(server_url, name)
        finally:
            connection.execute(drop)


def with_database(url: str, name: str) -> str:
    """Return the URL of another database on the same server, as libpq reads it."""
    parts = urlsplit(url)
    query = f"?{parts.query}" if parts.query else ""
    return f"postgresql://{parts.netloc}/{name}{query}"


def use_lasting_database(folder: Path) -> None:
    """Set DATABASE_URL, unless it is set: to the database kept in `folder`, starting its server."""
    if os.environ.get(_VARIABLE):
        return
    data_dir = folder / "data"
    url = _url_of_running(data_dir)
    if url is None:
        folder.mkdir(exist_ok=True)
        (folder / ".gitignore").write_text("*\n")
        url = PrivateServer(data_dir=data_dir).start().url(_LASTING)
        _create(url)
    os.environ[_VARIABLE] = url


def _url_of_running(data_dir: Path) -> str | None:
    """The URL of the database when another command's server already serves `data_dir`, else None."""
    try:
        lines = (data_dir / "postmaster.pid").read_text().splitlines()
        port, socket_dir = lines[3], lines[4]
    except (OSError, IndexError):
        return None
    url = f"postgresql://postgres@:{port}/{_LASTING}?host={socket_dir}"
    try:
        psycopg.connect(url, connect_timeout=5).close()
    except psycopg.OperationalError:
        return None
    return url


def _create(url: str) -> None:
    with psycopg.connect(with_database(url, _MAINTENANCE), autocommit=True) as connection:
        found = connection.execute("SELECT FROM pg_database WHERE datname = %s", [_LASTING]).fetchone()
        if found is None:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(_LASTING)))
