"""Why there is no certificate."""

from __future__ import annotations

from tenantfair.exceptions import ConfigurationError, TenantFairError


class RecordingFailed(TenantFairError):
    """Nothing could be recorded, or what was recorded proves nothing."""


class RecordingNotAllowed(ConfigurationError):
    """The role may not put triggers on the tables; only their owner may."""


class RecordingLeft(TenantFairError):
    """Parts of a recording could not be removed; they record nothing any more, or will stop to."""
