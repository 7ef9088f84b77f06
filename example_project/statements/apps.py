from django.apps import AppConfig


class StatementsConfig(AppConfig):
    default_auto_field = "django.db.models.BigAutoField"
    name = "example_project.statements"
