"""Customers, the statements they upload, and the transactions booked from those."""

from django.db import models
from django.urls import reverse


class Customer(models.Model):
    """A tenant: its slug is the tenant id of everything that runs for it."""

    name = models.CharField(max_length=100)
    slug = models.SlugField(unique=True)
    email = models.EmailField()

    class Meta:
        ordering = ["slug"]

    def __str__(self) -> str:
        return self.name

    def get_absolute_url(self) -> str:
        return reverse("statements:customer", args=[self.slug])


class Import(models.Model):
    """One uploaded CSV file, and what became of it. `run_id` is the run that books it."""

    customer = models.ForeignKey(Customer, models.CASCADE)
    file_name = models.CharField(max_length=200)
    content = models.TextField()
    uploaded_at = models.DateTimeField(auto_now_add=True)
    run_id = models.UUIDField(unique=True, null=True, editable=False)
    booked_at = models.DateTimeField(null=True, blank=True)
    transaction_count = models.PositiveIntegerField(default=0)
    problem = models.CharField(max_length=200, blank=True)

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return self.file_name


class Transaction(models.Model):
    """One line of a statement."""

    statement = models.ForeignKey(Import, models.CASCADE)
    booked_on = models.DateField()
    text = models.CharField(max_length=200)
    amount = models.DecimalField(max_digits=12, decimal_places=2)

    class Meta:
        ordering = ["booked_on", "id"]

    def __str__(self) -> str:
        return f"{self.booked_on} {self.text} {self.amount}"
