"""The customers and their imports in the admin, next to tenantfair's own pages."""

from django.contrib import admin

from example_project.statements.models import Customer, Import


@admin.register(Customer)
class CustomerAdmin(admin.ModelAdmin):
    list_display = ["name", "slug", "email"]
    search_fields = ["name", "slug"]


@admin.register(Import)
class ImportAdmin(admin.ModelAdmin):
    list_display = ["file_name", "customer", "uploaded_at", "booked_at", "transaction_count", "problem"]
    list_filter = ["customer"]
    list_select_related = ["customer"]
    readonly_fields = ["run_id", "booked_at", "transaction_count", "problem"]
