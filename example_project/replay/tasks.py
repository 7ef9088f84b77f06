"""The stand-in for a job of the log."""

import time

# `from django.tasks import task` on Django 6; on 5.2 it comes from the backport.
from tenantfair.compat import task


@task
def stand_in(user: str, seconds: float) -> None:
    """Take as long as the job took, in compressed time; `user` says whose it is where runs have no tenant."""
    time.sleep(seconds)
