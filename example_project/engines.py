"""One engine at work: a database of its own, migrated and recorded, with real workers beside it."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import psycopg

from example_project import journal
from example_project.database import scratch_database
from example_project.processes import Child, child, manage
from example_project.record import Record

QUIET_MAIL = "django.core.mail.backends.dummy.EmailBackend"


@dataclass(frozen=True)
class Engine:
    """A way of choosing whose run is next, by the settings that ask for it."""

    name: str
    settings: str


LEGACY = Engine("Legacy", "example_project.settings_legacy")
TENANT_FAIR = Engine("TenantFair", "example_project.settings")


@dataclass
class Site:
    """The example, migrated into a database of its own; `workers` are running."""

    url: str
    environment: Mapping[str, str]
    workers: list[Child] = field(default_factory=list)

    def manage(self, *arguments: str, stdin: str | None = None) -> None:
        """Run one management command on this database."""
        manage(*arguments, environment=self.environment, stdin=stdin)

    @contextmanager
    def working(self, *, processes: int, threads: int) -> Iterator[None]:
        """Have workers run during the block; they are asked to stop together at its end."""
        with ExitStack() as stack:
            for _ in range(processes):
                worker = child("tenantfair_worker", f"--concurrency={threads}", environment=self.environment)
                self.workers.append(stack.enter_context(worker))
            try:
                yield
            finally:
                for each in self.workers:
                    each.ask_to_stop()
                self.workers.clear()

    def record(self) -> Record:
        """Read what the database noted of all that happened."""
        return journal.read(self.url)

    @contextmanager
    def connection(self) -> Iterator[psycopg.Connection]:
        """Open a connection that sees each statement's own moment."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            yield connection


@contextmanager
def site(server_url: str, engine: Engine, *, purpose: str, cap: int, recorded: bool = True) -> Iterator[Site]:
    """Yield the example under `engine` in a new database, which is dropped when the block ends."""
    with scratch_database(server_url, f"{purpose}_{engine.name.lower()}") as url:
        environment = {
            "DATABASE_URL": url,
            "DJANGO_SETTINGS_MODULE": engine.settings,
            "MAX_ACTIVE_RUNS": str(cap),
            "MAIL_BACKEND": QUIET_MAIL,
            "DEBUG": "0",
        }
        manage("migrate", "--verbosity=0", environment=environment)
        if recorded:
            journal.install(url)
        yield Site(url, environment)
