"""The replay of job logs: reading them, summing them up, and one replay from end to end."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest

from example_project.replay.figures import Figures, Finished, by_tenant, jain, percentile
from example_project.replay.swf import BadLine, Job, UnreadableLog, parse_job, parse_log, read_log

ROOT = Path(__file__).resolve().parent.parent
SYNTHETIC = ROOT / "example_project" / "data" / "synthetic.swf"
NASA = Path(
    os.environ.get("TENANTFAIR_SWF") or ROOT.parent / "shared" / "data" / "NASA-iPSC-1993-3.1-cln.swf.gz"
)
GOOD = "1 100 7 30 4 -1 -1 -1 -1 -1 1 12 1 -1 -1 -1 -1 -1"


def replay(*arguments: object) -> subprocess.CompletedProcess[str]:
    """`manage.py replay`, on the server that this test run uses."""
    return subprocess.run(
        [sys.executable, "example_project/manage.py", "replay", *map(str, arguments)],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"},
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_a_job_is_its_submit_wait_and_run_time_and_its_user() -> None:
    assert parse_job(GOOD) == Job(submit=100, wait=7, run=30, user="user-12")


def test_what_a_log_does_not_know_is_not_taken_for_a_number() -> None:
    assert parse_job(GOOD.replace(" 7 ", " -1 ")).wait is None


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("1 100 7", "3 fields instead of 18"),
        (f"{GOOD} 99", "19 fields instead of 18"),
        (GOOD.replace("100", "soon"), "field 2 is no number: 'soon'"),
        (GOOD.replace("30", "nan"), "field 4 is no number: 'nan'"),
        (GOOD.replace("30", "inf"), "field 4 is no number: 'inf'"),
        (GOOD.replace("100", "-1"), "no submit time"),
        (GOOD.replace("30", "-1"), "no run time"),
        (GOOD.replace(" 12 ", " -1 "), "no user"),
        (GOOD.replace(" 12 ", " 1.5 "), "no user"),
    ],
)
def test_a_line_that_describes_no_job_says_why(line: str, reason: str) -> None:
    with pytest.raises(BadLine, match=f"^{reason}$"):
        parse_job(line)


def test_a_log_keeps_its_jobs_by_submit_time_and_the_numbers_of_its_bad_lines() -> None:
    log = parse_log(["; Version: 2.2\n", "\n", GOOD, "nonsense\n", GOOD.replace("100", "50")])

    assert [job.submit for job in log.jobs] == [50, 100]
    assert log.problems == [(4, "1 fields instead of 18")]
    assert log.header == "Version: 2.2"


def test_a_limit_ends_the_reading() -> None:
    log = parse_log([GOOD, GOOD, "nonsense"], limit=2)

    assert (len(log.jobs), log.problems) == (2, [])


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([GOOD], False),
        ([GOOD.replace(" 7 ", " -1 ")], True),
        ([GOOD.replace(" 7 ", " 0 ")], True),
        (["; Note: the given submit", ";       times are actually start times", GOOD], True),
        (["; Note: the submit times are those of the queue", GOOD], False),
    ],
)
def test_submit_times_that_are_start_times_are_recognised(lines: list[str], expected: bool) -> None:
    assert parse_log(lines).submits_are_starts is expected


def test_a_log_is_read_plain_or_packed_whatever_its_name(tmp_path: Path) -> None:
    plain, packed = tmp_path / "a.gz", tmp_path / "b.swf"
    plain.write_text(f"{GOOD}\n")
    packed.write_bytes(gzip.compress(f"{GOOD}\n".encode()))

    assert read_log(plain).jobs == read_log(packed).jobs == [parse_job(GOOD)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"; Version: 2.2\n", "holds no jobs"),
        (b"nonsense\n", "holds no jobs"),
        (gzip.compress(GOOD.encode())[:-12], "cannot be read"),
        (None, "cannot be read"),
    ],
)
def test_a_file_without_jobs_is_an_error(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "log.swf"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(UnreadableLog, match=message):
        read_log(path)


def test_the_synthetic_log_has_300_lines_of_which_8_are_bad() -> None:
    log = read_log(SYNTHETIC)

    assert len(SYNTHETIC.read_text().splitlines()) == 300
    assert (len(log.jobs), len(log.problems)) == (287, 8)
    assert "synthetic" in log.header
    assert not log.submits_are_starts


def test_percentiles_are_nearest_ranks() -> None:
    values = [1.0, 2.0, 3.0, 4.0]

    assert [percentile(values, share) for share in (0.0, 0.5, 0.51, 0.95, 1.0)] == [1, 2, 3, 4, 4]


def test_jain_s_index_is_1_for_equals_and_1_in_n_for_one_who_has_all() -> None:
    assert jain([3, 3, 3]) == pytest.approx(1)
    assert jain([5, 0, 0, 0]) == pytest.approx(1 / 4)
    assert jain([]) == jain([0, 0]) == 1


def test_a_tenant_s_figures_bound_the_slowdown_of_jobs_that_hardly_ran() -> None:
    finished = [Finished("a", 1.0, 1.0), Finished("a", 3.0, 0.0), Finished("b", 0.0, 0.1)]

    assert by_tenant(finished, shortest=0.5) == {
        "a": Figures(jobs=2, p50=1.0, p95=3.0, longest=3.0, slowdown=4.0),
        "b": Figures(jobs=1, p50=0.0, p95=0.0, longest=0.0, slowdown=1.0),
    }


def test_the_synthetic_log_is_replayed_under_both_engines() -> None:
    done = replay(SYNTHETIC, "--seconds", 3, "--concurrency", 4, "--cap", 2)

    assert done.returncode == 0, done.stderr
    assert "287 jobs of 14 users" in done.stdout
    assert "8 bad lines skipped" in done.stdout
    assert "start times" not in done.stdout
    assert "line 36 skipped: 16 fields instead of 18" in done.stderr
    assert "Legacy" in done.stdout
    assert "TenantFair" in done.stdout
    assert "user-14" in done.stdout
    assert "Jain's index" in done.stdout
    assert "Caps    never exceeded" in done.stdout
    assert "Bound   exceeded in none" in done.stdout


def test_a_replay_of_nothing_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "empty.swf"
    path.write_text("; Version: 2.2\n")

    done = replay(path)

    assert done.returncode == 1
    assert "holds no jobs" in done.stderr


@pytest.mark.skipif(not NASA.exists(), reason=f"there is no {NASA.name}; TENANTFAIR_SWF may name one")
def test_the_nasa_log_is_replayed_and_its_lack_of_submit_times_said() -> None:
    done = replay(NASA, "--limit", 300, "--seconds", 4)

    assert done.returncode == 0, done.stderr
    assert "300 jobs" in done.stdout
    assert "start times" in done.stdout
    assert "Caps    never exceeded" in done.stdout
    assert "Bound   exceeded in none" in done.stdout


@pytest.mark.skipif(not NASA.exists(), reason=f"there is no {NASA.name}; TENANTFAIR_SWF may name one")
def test_the_nasa_log_is_read_whole() -> None:
    log = read_log(NASA)

    assert len(log.jobs) + len(log.problems) == 18_239
    assert log.submits_are_starts
