"""Log records that cannot do any harm.

A host's filter may want what only web requests have, a handler's disk may be full, and a task's exception may
have a class whose code raises when it is described. What has to be done about a run is done all the same.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any


def log_safely(
    logger: logging.Logger, level: int, message: str, *arguments: object, exc_info: Any = None, **options: Any
) -> None:
    """Log as `logger.log` does, but raise nothing; without the traceback when it cannot be told with it."""
    try:
        logger.log(level, message, *arguments, exc_info=exc_info, stacklevel=2, **options)
    except BaseException:  # code of the host or of a task's exception, which may raise anything
        with suppress(BaseException):
            logger.log(level, message, *arguments, stacklevel=2, **options)
