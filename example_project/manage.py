#!/usr/bin/env python
"""The example's command line: `python example_project/manage.py <command>`.

It talks to the database that DATABASE_URL names. Without one it keeps a PostgreSQL of its own, whose data
stays in `.postgres` between commands and which runs as long as the command that started it.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Run one command."""
    # The script's own folder must not be searched: it has a module named like one of Python's.
    sys.path[0] = str(ROOT)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")
    from django.core.management import execute_from_command_line  # noqa: PLC0415

    from example_project.database import use_lasting_database  # noqa: PLC0415
    from example_project.postgres import PostgresError  # noqa: PLC0415

    try:
        use_lasting_database(ROOT / ".postgres")
    except PostgresError as error:
        sys.exit(f"{error}\nDATABASE_URL may name another PostgreSQL.")
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
