"""Taking statements in: the file and the run that will book it are stored together or not at all."""

from collections.abc import Iterable
from uuid import uuid4

from django.db import transaction

from example_project.statements.models import Customer, Import
from example_project.statements.tasks import book_import
from tenantfair import runs
from tenantfair.backend import for_tenant


def submit(customer: Customer, file_name: str, content: str) -> Import:
    """Store one uploaded file and enqueue its booking as a run of the customer's."""
    with transaction.atomic():
        statement = Import.objects.create(customer=customer, file_name=file_name, content=content)
        result = for_tenant(book_import, customer.slug).enqueue(statement.pk)
        statement.run_id = result.id
        statement.save(update_fields=["run_id"])
    return statement


def submit_many(customer: Customer, files: Iterable[tuple[str, str]], *, tenant_id: str | None) -> None:
    """Store many files, as (name, content), and enqueue them in one go. `tenant_id` None names no tenant."""
    with transaction.atomic():
        statements = Import.objects.bulk_create(
            (
                Import(customer=customer, file_name=file_name, content=content, run_id=uuid4())
                for file_name, content in files
            ),
            batch_size=1000,
        )
        runs.enqueue_many(
            runs.NewRun(task=book_import, args=[statement.pk], run_id=statement.run_id, tenant_id=tenant_id)
            for statement in statements
        )
