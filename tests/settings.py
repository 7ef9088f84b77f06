"""Django settings of the test run; the database is the one DATABASE_URL names."""

import django
import environ

env = environ.Env()

SECRET_KEY = "only for tests"
USE_TZ = True
TIME_ZONE = "UTC"
ROOT_URLCONF = "tests.urls"
STATIC_URL = "static/"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

# Static tools such as mypy load these settings with no database at hand.
DATABASES = {"default": env.db("DATABASE_URL", default="postgresql:///tenantfair")}

INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.admin",
    "django.contrib.staticfiles",
    *(["django_tasks"] if django.VERSION < (6,) else []),
    "tenantfair",
]

MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
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

TASKS = {"default": {"BACKEND": "tenantfair.backend.TenantFairBackend", "OPTIONS": {}}}

TENANTFAIR = {"DEFAULT_MAX_ACTIVE_RUNS": 10}
