"""`manage.py load`: one customer with far too many imports, then many with a few."""

import random
from argparse import ArgumentParser
from collections.abc import Iterator
from datetime import date, timedelta
from typing import Any

from django.core.management.base import BaseCommand

from example_project.statements.models import Customer
from example_project.statements.uploads import submit_many
from tenantfair.conf import get_settings

_LINES = 10
_TEXTS = ["Rent", "Groceries", "Salary", "Train ticket", "Books", "Insurance", "Coffee"]


class Command(BaseCommand):
    """Enqueues the load of the demo. The same numbers give the same files."""

    help = "Let one noisy customer upload many statements, and then quiet ones a few each."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--noisy", type=int, default=5000, metavar="N", help="imports of the noisy one (%(default)s)"
        )
        parser.add_argument(
            "--quiet", type=int, default=20, metavar="N", help="how many quiet ones (%(default)s)"
        )
        parser.add_argument(
            "--each", type=int, default=3, metavar="N", help="imports of each quiet one (%(default)s)"
        )

    def handle(self, *args: Any, noisy: int, quiet: int, each: int, **options: Any) -> None:
        shares = {"noisy": noisy} | {f"quiet-{number:02}": each for number in range(1, quiet + 1)}
        required = get_settings().tenant_mode == "required"
        for slug, count in shares.items():
            name = slug.replace("-", " ").capitalize()
            customer, _ = Customer.objects.get_or_create(
                slug=slug, defaults={"name": name, "email": f"{slug}@example.com"}
            )
            submit_many(customer, _files(slug, count), tenant_id=slug if required else None)
        self.stdout.write(f"{sum(shares.values())} imports enqueued")


def _files(slug: str, count: int) -> Iterator[tuple[str, str]]:
    chance = random.Random(slug)
    for number in range(1, count + 1):
        yield f"{slug}-{number:04}.csv", _content(chance)


def _content(chance: random.Random) -> str:
    day = date(2026, 1, 1) + timedelta(days=chance.randrange(300))
    lines = (
        f"{day + timedelta(days=line)},{chance.choice(_TEXTS)},{chance.randrange(-99_999, 99_999) / 100:.2f}"
        for line in range(_LINES)
    )
    return "\n".join(["date,text,amount", *lines, ""])
