"""The same service on a queue that knows no tenants: whatever has waited longest goes first.

It is what the demo and the replay compare with. The engine refuses tenant ids, so whose run it is stands in
the run's arguments alone.
"""

from example_project.settings import *  # noqa: F403

TENANTFAIR = {"TENANT_MODE": "none", "ENGINE": "legacy"}
