"""What is wrong with a fairness domain, and putting right what can be computed.

`examine` looks at one consistent snapshot and changes nothing; `repair` puts right counts, missing partitions
and places on the ring, identities and the policy row, and says what it changed. `reinstall` creates functions
and triggers anew.
"""

from tenantfair.doctor.examine import Limits, examine
from tenantfair.doctor.kinds import KINDS, Kind, Severity
from tenantfair.doctor.reinstall import reinstall
from tenantfair.doctor.repair import Change, RepairBlocked, repair
from tenantfair.doctor.report import Finding, Report

__all__ = [
    "KINDS",
    "Change",
    "Finding",
    "Kind",
    "Limits",
    "RepairBlocked",
    "Report",
    "Severity",
    "examine",
    "reinstall",
    "repair",
]
