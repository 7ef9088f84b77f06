"""Every example of the documentation is run: Python, SQL and the commands that it shows.

A page's blocks share one namespace and one transaction, which is rolled back; the tutorial is followed by
`test_docs_tutorial`. Commands of ours that end by themselves are run, others are parsed.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import django
import pytest
from django.conf import settings
from django.core.management import call_command, get_commands, load_command_class
from django.db import connection
from django.test import override_settings
from django.utils.module_loading import import_string

from tenantfair import policy, runs
from tenantfair.checks import check_settings
from tenantfair.compat import task_backends
from tenantfair.exceptions import RunNotFound
from tenantfair.testing import drain
from tests.docs_pages import DOCS, ROOT, TUTORIAL, Block, blocks, pages
from tests.tasks_for_tests import add

EXAMPLES = [page for page in pages() if page != TUTORIAL and blocks(page)]
RUN_HERE = {"tenantfair_caps", "tenantfair_inspect", "tenantfair_prune"}
SHOWN_ONLY = {"text", "ini", "yaml"}

# Settings that cannot change under a running process; what is added to DATABASES is looked up by alias only.
FIXED = ("DATABASES", "INSTALLED_APPS", "MIDDLEWARE")
CHANGEABLE = ("TASKS", "TENANTFAIR")

_COMMAND = re.compile(r'manage\.py"?,? "?(?P<words>\w+.*)')


class Page:
    """Runs the blocks of one page in order."""

    def __init__(self, page: Path, stack: ExitStack) -> None:
        self.stack = stack
        self.said: list[dict[str, Any]] = []
        self.main = self.module(f"docs_{page.stem.replace('-', '_')}")

    def run(self, block: Block) -> None:
        match block.language:
            case "python":
                self.python(block)
            case "sql":
                self.sql(block)
            case "sh":
                for command in block.commands:
                    self.shell(command, block.where)
            case shown:
                assert shown in SHOWN_ONLY, f"{block.where}: nobody runs {shown}"
                for found in _COMMAND.finditer(block.text):
                    parse(shlex.split(re.sub(r'[",\]]+', " ", found["words"])), block.where)

    def python(self, block: Block) -> None:
        code = compile(beside(block.text), block.where, "exec")
        if block.file is None:
            exec(code, vars(self.main))
        elif block.file[0].endswith("settings.py"):
            self.settings(code)
        else:
            exec(code, vars(self.module(block.file[0].removesuffix(".py").replace("/", "."))))

    def settings(self, code: Any) -> None:
        """Put a page's settings in force for the rest of it."""
        before: dict[str, Any] = {name: getattr(settings, name) for name in (*FIXED, *CHANGEABLE)}
        namespace = {name: value.copy() for name, value in before.items()}
        exec(code, namespace)
        for alias in namespace["DATABASES"].keys() - settings.DATABASES.keys():
            settings.DATABASES[alias] = namespace["DATABASES"][alias]
            self.stack.callback(settings.DATABASES.pop, alias)
        said = {name: namespace[name] for name in CHANGEABLE}
        self.said.append(said)
        self.stack.enter_context(override_settings(**said))

    def check_settings(self) -> None:
        """What each block of settings says can work, each backend of TASKS and dotted path included."""
        for said in self.said:
            with override_settings(**said):
                assert check_settings(None) == []
                for alias in said["TASKS"]:
                    assert list(task_backends[alias].check()) == []
                path = said["TENANTFAIR"].get("TENANT_FROM_REQUEST")
                assert path is None or callable(import_string(path))

    def module(self, name: str) -> ModuleType:
        """Return a new module under `name`, importable until the page ends, with the packages above it."""
        for parent in [*[name[: dot.start()] for dot in re.finditer(r"\.", name)], name]:
            if parent not in sys.modules or parent == name:
                sys.modules[parent] = ModuleType(parent)
                sys.modules[parent].__path__ = []
                self.stack.callback(sys.modules.pop, parent, None)
        return sys.modules[name]

    def sql(self, block: Block) -> None:
        with connection.cursor() as cursor:
            cursor.execute(re.sub(r"^(BEGIN|COMMIT);$", "", block.text, flags=re.MULTILINE), None)

    def shell(self, command: str, where: str) -> None:
        words = shlex.split(command)
        match words:
            case ["make", *targets]:
                done = subprocess.run(["make", "-n", *targets], cwd=ROOT, capture_output=True, check=False)
                assert done.returncode == 0, f"{where}: {done.stderr.decode()}"
            case ["python", "manage.py", *_]:
                for part in " ".join(words).split(" && "):
                    parse(part.split()[2:], where)
            case ["python", "-m", "pip", "install", *_]:
                pass
            case _:
                pytest.fail(f"{where}: nobody runs {command!r}")


def parse(words: list[str], where: str) -> None:
    """Have Django parse a command line, and run the command if it is one of `RUN_HERE`."""
    name, *arguments = words
    app = get_commands().get(name)
    assert app is not None, f"{where}: there is no command {name}"
    command = load_command_class(app, name) if isinstance(app, str) else app
    try:
        options = vars(command.create_parser("manage.py", name).parse_args(arguments))
    except SystemExit:
        pytest.fail(f"{where}: wrong usage of {' '.join(words)}")
    if name in RUN_HERE and options["database"] is None:
        call_command(name, *arguments)


def beside(text: str) -> str:
    """Return the text with the framework by its name in this environment: Django's own, or the backport's."""
    return text if django.VERSION >= (6,) else text.replace("django.tasks", "django_tasks")


@contextmanager
def django_tenants() -> Iterator[None]:
    """Stand in for the one function of django-tenants that a page uses."""

    @contextmanager
    def schema_context(schema: str) -> Iterator[None]:
        yield

    names = ["django_tenants", "django_tenants.utils"]
    for name in names:
        sys.modules[name] = ModuleType(name)
    sys.modules["django_tenants.utils"].schema_context = schema_context  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]


@pytest.mark.django_db
@pytest.mark.parametrize("page", EXAMPLES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_examples_of_a_page_work(page: Path) -> None:
    policy.synchronize()
    with ExitStack() as stack:
        stack.enter_context(django_tenants())
        running = Page(page, stack)
        for block in blocks(page):
            if block.is_run:
                running.run(block)
        running.check_settings()


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_block_that_is_not_run_says_why(page: Path) -> None:
    for block in blocks(page):
        assert block.is_run or re.fullmatch(r"no-test: \w.{15,}", block.note or ""), block.where


@pytest.mark.django_db
def test_the_grants_are_enough_for_each_role() -> None:
    """As the roles page says: one role enqueues, one works, one prunes and sets caps."""
    policy.synchronize()
    with connection.cursor() as cursor:
        for block in blocks(DOCS / "howto/roles.md"):
            if block.language == "sql":
                cursor.execute(block.text, None)

        cursor.execute("SET ROLE shop_web")
        run_id = runs.enqueue(add, args=[1], tenant_id="acme")
        cursor.execute("SET ROLE shop_worker")
        drain()
        cursor.execute("SET ROLE shop_admin")
        policy.put_override("acme", 2)
        call_command("tenantfair_inspect", "--scope", "acme")
        call_command("tenantfair_prune", "--older-than", "0s")
        cursor.execute("SET ROLE shop_web")
        with pytest.raises(RunNotFound):
            runs.get(run_id)
        cursor.execute("RESET ROLE")
