"""Django signals of tenantfair, all sent by `send_robust`: a failing receiver is logged and changes nothing.

| signal           | sent when                                         | sender                        |
|------------------|---------------------------------------------------|-------------------------------|
| `claim_observed` | a claim call has ended, whatever came of it       | the class of the engine       |
| `cap_changed`    | a changed cap has been committed                  | `Policy` or `Partition`       |

`claim_observed` carries aggregates only, never a tenant, scope, run, task path, cursor or token:

| argument         | value                                                                                |
|------------------|--------------------------------------------------------------------------------------|
| `using`          | the database alias                                                                   |
| `engine`         | `tenant_fair` or `legacy`                                                            |
| `result`         | `ok`, a `ClaimUnavailable.reason`, or `error` for any other failure                  |
| `phase`          | `policy_cursor` when the policy row was contended, else None                         |
| `demand`         | how many outcomes were asked for                                                     |
| `duration`       | seconds from asking to having the answer                                             |
| `inspections`    | ring positions visited                                                               |
| `outcomes`       | counts of `promotion`, `reacquire`, `steal`, `admitted_poison`, `queued_poison`      |
| `denials`        | counts of fruitless inspections by disposition                                       |
| `claim_attempts` | sum of the attempt numbers of the leases                                             |

Calls that one exchange with the server made are told one by one; each has the same share of its time.

`cap_changed` tells of the default (sender `Policy`) or of one override (sender `Partition`):

| argument    | value                                                                   |
|-------------|-------------------------------------------------------------------------|
| `using`     | the database alias                                                      |
| `scope_key` | the scope of the override, `''` for the tenantless one; None for the default |
| `cap`       | the new cap; None when the override was reset                           |
| `version`   | the version that the change produced                                    |

A receiver of `cap_changed` runs in the transaction's `on_commit`, so what it is told is already true.
"""

from __future__ import annotations

from django.dispatch import Signal

__all__ = ["cap_changed", "claim_observed"]

# Sent at every claim: the receivers of an engine are looked up once, not each time.
claim_observed = Signal(use_caching=True)
cap_changed = Signal()
