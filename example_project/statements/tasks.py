"""The work that is done in the background."""

from typing import Any

from django.core.mail import send_mail
from django.db import transaction
from django.utils import timezone

from example_project.statements.csvfile import BadStatement, Line, read_statement
from example_project.statements.models import Import, Transaction

# `from django.tasks import task` on Django 6; on 5.2 it comes from the backport.
from tenantfair.compat import task


@task
def book_import(import_id: int) -> dict[str, Any]:
    """Book one uploaded statement, or note what is wrong with it, and mail the customer a summary.

    A run whose worker died starts again, so what is booked already is not booked twice.
    """
    with transaction.atomic():
        statement = (
            Import.objects.select_for_update(of=("self",)).select_related("customer").get(pk=import_id)
        )
        if statement.booked_at is None:
            try:
                _book(statement, read_statement(statement.content))
            except BadStatement as error:
                statement.problem = str(error)[:200]
            statement.booked_at = timezone.now()
            statement.save(update_fields=["booked_at", "transaction_count", "problem"])
    outcome = statement.problem or f"{statement.transaction_count} transactions booked"
    send_mail(
        f"Your statement {statement.file_name}",
        f"{statement.file_name}: {outcome}.",
        "statements@example.com",
        [statement.customer.email],
    )
    return {"booked": statement.transaction_count, "problem": statement.problem}


def _book(statement: Import, lines: list[Line]) -> None:
    Transaction.objects.bulk_create(
        Transaction(statement=statement, booked_on=line.booked_on, text=line.text, amount=line.amount)
        for line in lines
    )
    statement.transaction_count = len(lines)
