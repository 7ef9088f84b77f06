"""`make admin`: the site comes up with data and a login, and goes away without a trace."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

ROOT = Path(__file__).resolve().parent.parent


def test_the_site_serves_its_pages_until_it_is_stopped() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "example_project.site", "--port=0", "--noisy=5"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as site:
        try:
            assert site.stdout is not None
            address, password, said = "", "", ""
            for line in site.stdout:
                said += line
                if found := re.search(r"^Customers +(\S+)", line):
                    address = found[1]
                if found := re.search(r"user admin, password (\S+)", line):
                    password = found[1]
                if line.startswith("Quit the server"):
                    break

            assert address.startswith("http://127.0.0.1:"), said
            assert len(password) >= 12
            with urlopen(address, timeout=30) as page:
                assert b'href="/customers/noisy/"' in page.read()
            with urlopen(f"{address}admin/login/", timeout=30) as page:
                assert page.status == 200
        finally:
            site.send_signal(signal.SIGINT)
            rest, _ = site.communicate(timeout=60)

    assert site.returncode == 0
    assert "Stopped" in rest
