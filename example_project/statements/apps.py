from django.apps import AppConfig


class StatementsConfig(AppConfig):
    name = "example_project.statements"
