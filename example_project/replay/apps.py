from django.apps import AppConfig


class ReplayConfig(AppConfig):
    name = "example_project.replay"
