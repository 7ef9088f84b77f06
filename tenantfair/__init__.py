"""Durable background runs in PostgreSQL with exact per-tenant caps and bounded fair rotation.

Public modules: `runs`, `policy`, `tenants`, `execution`, `backend`, `claim`, `worker`, `doctor`, `certify`,
`metrics`, `signals`, `exceptions`, `testing`. They are imported by name (`from tenantfair import runs`), not
here: Django imports this package before its app registry is ready.
"""

__version__ = "0.1.0"
