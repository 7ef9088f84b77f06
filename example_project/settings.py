"""Settings of the example: a small service in which every customer is a tenant.

Everything comes from the environment, or stands here with a default that works on one's own machine.
"""

import django
import environ

env = environ.Env()

DEBUG = env.bool("DEBUG", default=True)
SECRET_KEY = env("SECRET_KEY", default="only for the example on your own machine")
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
ROOT_URLCONF = "example_project.urls"
STATIC_URL = "static/"
USE_TZ = True
TIME_ZONE = "UTC"

# manage.py sets DATABASE_URL when nobody else has.
DATABASES = {"default": env.db("DATABASE_URL", default="postgresql:///tenantfair_example")}
# Without this, Django closes a worker's connection after every task; opening one costs more than the task.
DATABASES["default"]["CONN_MAX_AGE"] = 60

INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.admin",
    "django.contrib.staticfiles",
    *(["django_tasks"] if django.VERSION < (6,) else []),
    "tenantfair",
    "example_project.statements",
    "example_project.replay",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

MAIL_BACKEND = env("MAIL_BACKEND", default="django.core.mail.backends.console.EmailBackend")
if django.VERSION >= (6, 1):
    MAILERS = {"default": {"BACKEND": MAIL_BACKEND}}
else:
    EMAIL_BACKEND = MAIL_BACKEND

# All that tenantfair needs: the tasks go to its backend, and a customer has at most so many runs at a time.
TASKS = {"default": {"BACKEND": "tenantfair.backend.TenantFairBackend"}}
TENANTFAIR = {"DEFAULT_MAX_ACTIVE_RUNS": env.int("MAX_ACTIVE_RUNS", default=4)}
