"""Test files as units: each is run by pytest in a process of its own, and counted from its report."""

from __future__ import annotations

import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.proof.build import ROOT
from tests.proof.record import Row


def run(part: str, unit: str, what: str, *paths: str) -> Row:
    """Run tests and return how many passed of how many; whatever did not pass is a failure, skips too."""
    begun = time.monotonic()
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *paths],
            cwd=ROOT,
            check=False,
        )
        cases = list(ET.parse(report).iter("testcase")) if report.exists() else []
    bad = [case for case in cases if len(case.findall("*[@message]")) or case.find("skipped") is not None]
    failures = len(bad) or int(done.returncode != 0)
    note = ", ".join(f"{case.get('classname')}::{case.get('name')}" for case in bad[:3])
    if done.returncode and not bad:
        note = f"pytest ended with {done.returncode}"
    seconds = time.monotonic() - begun
    return Row(part, unit, what, len(cases) - len(bad), len(cases), "", failures, seconds, note)
