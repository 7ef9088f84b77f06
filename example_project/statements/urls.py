"""Where the customers' pages are."""

from django.urls import path

from example_project.statements.views import Customers, Imports, Upload

app_name = "statements"
urlpatterns = [
    path("", Customers.as_view(), name="customers"),
    path("customers/<slug:slug>/", Imports.as_view(), name="customer"),
    path("customers/<slug:slug>/upload/", Upload.as_view(), name="upload"),
]
