"""`python -m example_project.site`: the demo's data, and a site on this machine to look at it with."""

import argparse
import secrets
import socket
import sys
from collections.abc import Sequence

from example_project.database import server
from example_project.engines import TENANT_FAIR, site
from example_project.postgres import PostgresError
from example_project.processes import ChildFailed, Stopped, child, pause, stoppable

HOST = "127.0.0.1"
USER = "admin"
CAP = 4


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until asked to stop; return the exit code of the process."""
    parser = argparse.ArgumentParser(prog="python -m example_project.site", description=__doc__)
    parser.add_argument(
        "--port", type=int, default=8000, help="where to listen (%(default)s, or a free one if taken)"
    )
    parser.add_argument(
        "--noisy", type=int, default=500, metavar="N", help="uploads of the noisy customer (%(default)s)"
    )
    options = parser.parse_args(arguments)
    try:
        with stoppable(), server() as server_url:
            _serve(server_url, _free(options.port), options.noisy)
    except Stopped:
        print("\nStopped; the site, the worker and the database are gone.")
        return 0
    except (ChildFailed, PostgresError) as error:
        print(error, file=sys.stderr)
        return 1


def _serve(server_url: str, port: int, noisy: int) -> None:
    password = secrets.token_urlsafe(12)
    with site(server_url, TENANT_FAIR, purpose="site", cap=CAP, recorded=False) as place:
        place.manage("load", f"--noisy={noisy}")
        superuser = {**place.environment, "DJANGO_SUPERUSER_PASSWORD": password}
        with child(
            "createsuperuser",
            "--noinput",
            f"--username={USER}",
            f"--email={USER}@example.com",
            environment=superuser,
        ) as command:
            command.wait()
        # Static files of the admin are served in debug mode only.
        debug = {**place.environment, "DEBUG": "1"}
        address = f"{HOST}:{port}"
        with (
            place.working(processes=1, threads=CAP),
            child("runserver", "--noreload", address, environment=debug, quiet=False) as web,
        ):
            print(
                f"\nCustomers  http://{address}/\n"
                f"Admin      http://{address}/admin/   user {USER}, password {password}\n"
                "Ctrl-C stops everything.\n",
                flush=True,
            )
            while True:
                pause(0.5, web, *place.workers)


def _free(port: int) -> int:
    """Return `port` if nobody listens there, else one that is free."""
    for candidate in (port, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, candidate))
            except OSError:
                continue
            return probe.getsockname()[1]
    raise OSError("no port is free")


if __name__ == "__main__":
    sys.exit(main())
