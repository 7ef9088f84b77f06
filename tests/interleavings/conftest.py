"""One database with gates for all tests of this folder, made when the first of them runs."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from django.conf import settings
from django.test import override_settings

from tests.interleavings.bed import database
from tests.interleavings.replaying import on
from tests.interleavings.stage import Stage


@pytest.fixture(scope="package")
def stage(django_db_setup: None, django_db_blocker: pytest.FixtureRequest) -> Iterator[Stage]:
    quiet = {**settings.TENANTFAIR, "LISTEN": False}
    with (
        django_db_blocker.unblock(),
        override_settings(TENANTFAIR=quiet),
        database(f"interleavings_{os.getpid()}") as name,
        Stage(name) as found,
        on(found),
    ):
        yield found
