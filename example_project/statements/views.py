"""Two pages and a form: the customers, the imports of one, and the upload."""

from typing import Any

from django.contrib import messages
from django.db.models import Count, Q, QuerySet
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.utils.functional import cached_property
from django.views.generic import FormView, ListView

from example_project.statements.forms import UploadForm
from example_project.statements.models import Customer, Import
from example_project.statements.uploads import submit
from tenantfair.models import Run
from tenantfair.runs import STATE_EXPRESSION


class Customers(ListView):
    """Every customer, with how far its imports are."""

    template_name = "statements/customers.html"
    context_object_name = "customers"

    def get_queryset(self) -> QuerySet[Customer]:
        booked = Count("import", filter=Q(import__booked_at__isnull=False))
        return Customer.objects.annotate(uploaded=Count("import"), booked=booked)


class Imports(ListView):
    """One customer's imports, newest first, with the state of the run behind each."""

    template_name = "statements/customer.html"
    context_object_name = "imports"
    paginate_by = 50

    @cached_property
    def customer(self) -> Customer:
        return get_object_or_404(Customer, slug=self.kwargs["slug"])

    def get_queryset(self) -> QuerySet[Import]:
        return Import.objects.filter(customer=self.customer).defer("content")

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        context = super().get_context_data(customer=self.customer, **kwargs)
        listed = list(context["imports"])
        states = dict(
            Run.objects.filter(run_id__in=[each.run_id for each in listed])
            .annotate(shown=STATE_EXPRESSION)
            .values_list("run_id", "shown")
        )
        for each in listed:
            each.state = states.get(each.run_id, "pruned")
        return context | {"imports": listed}


class Upload(FormView):
    """Takes one file and hands it to the queue; the answer comes before the work is done."""

    template_name = "statements/upload.html"
    form_class = UploadForm

    @cached_property
    def customer(self) -> Customer:
        return get_object_or_404(Customer, slug=self.kwargs["slug"])

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return super().get_context_data(customer=self.customer, **kwargs)

    def form_valid(self, form: UploadForm) -> HttpResponse:
        statement = submit(self.customer, *form.cleaned_data["file"])
        messages.success(self.request, f"{statement.file_name} was taken in and will be booked soon.")
        return redirect(self.customer)
