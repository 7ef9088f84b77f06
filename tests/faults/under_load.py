"""Faults under load: a short soak with one fault only, judged as the long one is."""

from __future__ import annotations

from tests.faults.scenario import Scenario, enter
from tests.faults.server import World
from tests.faults.soak_unit import Soak

_CLAIMS = 1_500
_BACKLOG = 300
_CLAIMS_PER_FAULT = 250

# By the fault's number and the names that `soak_faults.Meddler` knows them by.
_ALONE = {
    "F3 claimer stopped past its leases": (("F3",), "stop"),
    "F9 sessions terminated": (("F9",), "terminate"),
    "F10 statements cancelled": (("F10",), "cancel"),
    "F14 rows locked crosswise": (("F14", "F17"), "cross"),
    "F17 policy held": (("F17",), "hold policy"),
    "F17 runs held": (("F17",), "hold runs"),
    "F17 table locked": (("F17",), "hold table"),
    "F17 table rewritten": (("F17",), "rewrite table"),
    "F25 old snapshot held": (("F25",), "hold snapshot"),
    "F27 replies lost": (("F27",), "lose reply"),
    "F27 connections cut": (("F27",), "cut"),
    "F34 caps flipped": (("F34",), "flip cap"),
    "F34 overrides reset": (("F34",), "reset cap"),
    "F35 tenants come and go": (("F35",), "come and go"),
    "F38 function replaced": (("F38",), "replace function"),
}
# They reach every domain of the server.
_OWN_SERVER = {
    "F18 server restarted at once": (("F18",), "restart"),
    "F19 server process killed": (("F19",), "kill backend"),
    "F20 server frozen": (("F20",), "freeze server"),
    "F22 sessions used up": (("F22",), "take all sessions"),
}
_QUICK = {
    "F14 rows locked crosswise",
    "F17 table locked",
    "F34 caps flipped",
    "F38 function replaced",
    "F18 server restarted at once",
}


def _enter(unit: str, faults: tuple[str, ...], name: str, *, own_server: bool) -> None:
    def strike(world: World, times: int) -> int:
        struck = 0
        for seed in range(times):
            figures = Soak(
                world, _CLAIMS, seed, {name: 1}, backlog=_BACKLOG, claims_per_fault=_CLAIMS_PER_FAULT
            ).run()
            assert figures.violations == [], (seed, figures.violations)
            assert figures.faults, "no fault came to pass"
            struck += sum(figures.faults.values())
        return struck

    what = f"{name}, again and again under load"
    enter(Scenario(unit, what, faults, strike, unit in _QUICK, 3, own_server))


for _unit, (_faults, _name) in _ALONE.items():
    _enter(_unit, _faults, _name, own_server=False)
for _unit, (_faults, _name) in _OWN_SERVER.items():
    _enter(_unit, _faults, _name, own_server=True)
