"""Other products in the same run: each in a process of its own, on the same server, beside our own cells.

`TENANTFAIR_PEERS` names the folder with their modules `peer_*.py`; `TENANTFAIR_PEERS_PYTHON` the Python that
has their packages. A module takes the workloads to run as arguments, reads PEERS_PGHOST, PEERS_PGPORT,
PEERS_CELL_S and PEERS_OUT, and adds one JSON object a cell to the file that PEERS_OUT names.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from tests.benchmarks import seeds
from tests.benchmarks.bench import Bench
from tests.benchmarks.claimers import FACADE, FLOOR, OWN_FLOOR, THROUGH
from tests.benchmarks.drain import drain
from tests.benchmarks.rows import Row, make_row

_TIE = 1.1
_LONGEST_SECONDS = 300
_LAST_ERROR_LINES = 3
_TEMPLATES = {"W1": ("seed_w1", seeds.one_tenant), "W2": ("seed_w2", seeds.many_tenants)}

Cell = tuple[str, int]  # workload, demand


def run_peers(bench: Bench) -> None:
    """Add a row per peer and cell of W1 and W2 with one client, or one `not run` row that says why."""
    folder = os.environ.get("TENANTFAIR_PEERS")
    modules = sorted(Path(folder).absolute().glob("peer_*.py")) if folder else []
    if not modules:
        bench.rows.append(
            _not_run("all", f"{folder} holds no peer_*.py" if folder else "TENANTFAIR_PEERS is not set")
        )
        return
    python = os.environ.get("TENANTFAIR_PEERS_PYTHON", sys.executable)
    samples: dict[tuple[Cell, str], list[dict[str, float]]] = defaultdict(list)
    reasons: dict[str, str] = {}
    for workload, (template, groups) in _TEMPLATES.items():
        seeds.make(bench.databases, template, groups())
        for _ in range(bench.rounds):
            ours: dict[int, dict[str, float]] = {}
            for module in modules:
                bench.say(f"{workload}: {module.stem}")
                found, reason = _run(bench, python, module, workload)
                if reason:
                    reasons[module.stem] = reason
                for one in found:
                    demand = one["demand"]
                    if demand not in ours:
                        ours[demand] = _ours(bench, template, demand)
                    samples[(workload, demand), one["peer"]].append(
                        {one["peer"]: one["claims_per_s"], **ours[demand]}
                    )
        bench.databases.drop(template)
    for ((workload, demand), peer), found in samples.items():
        bench.add(_compared(workload, demand, peer, found))
    for name, reason in reasons.items():
        bench.rows.append(_not_run(name, reason))


def _ours(bench: Bench, template: str, demand: int) -> dict[str, float]:
    return {
        variant: drain(bench, template, variant, demand=demand, clients=1).per_second
        for variant in (FLOOR, OWN_FLOOR, FACADE)
    }


def _run(bench: Bench, python: str, module: Path, workload: str) -> tuple[list[dict[str, Any]], str]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "results.jsonl"
        environment = os.environ | {
            "PEERS_PGHOST": str(bench.databases.server.socket_dir),
            "PEERS_PGPORT": str(bench.databases.server.port),
            "PEERS_CELL_S": f"{bench.seconds:g}",
            "PEERS_OUT": str(out),
        }
        for name in ("DJANGO_SETTINGS_MODULE", "DATABASE_URL"):
            environment.pop(name, None)
        try:
            answer = subprocess.run(
                [python, str(module), workload.lower()],
                env=environment,
                cwd=folder,
                check=False,
                text=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=_LONGEST_SECONDS,
            )
            code, said = answer.returncode, answer.stderr
        except subprocess.TimeoutExpired:
            code, said = -1, f"stopped after {_LONGEST_SECONDS} s"
        lines = out.read_text().splitlines() if out.exists() else []
        found = [one for one in map(json.loads, lines) if one["clients"] == 1 and one["w"] == workload]
        reason = " / ".join(said.strip().splitlines()[-_LAST_ERROR_LINES:]) if code and not found else ""
        return found, reason


def _compared(workload: str, demand: int, peer: str, samples: list[dict[str, float]]) -> Row:
    """The peer's rate, and in the note how ours compares: a lead under 10 % is a tie."""
    row = make_row(workload, f"peer {peer}", samples, peer, unit="claims/s", demand=demand, through=peer)
    ours = make_row(workload, "", samples, FACADE, unit="claims/s").value
    pairs = sorted(sample[FACADE] / sample[peer] for sample in samples)
    lead = pairs[len(pairs) // 2]
    verdict = "ahead" if lead >= _TIE else "behind" if lead <= 1 / _TIE else "tie"
    return Row(
        **{
            **{name: getattr(row, name) for name in Row.__slots__},
            "target": "ours ahead" if demand < 32 else "ours ahead or tie",
            "met": verdict == "ahead" or (demand >= 32 and verdict == "tie"),
            "note": f"ours: {verdict}, {lead:.2f} x ({ours:,.0f}/s through {THROUGH[FACADE]})",
        }
    )


def _not_run(name: str, reason: str) -> Row:
    return Row("peers", f"{name}: not run", None, 0, None, "", None, None, None, None, note=reason)
