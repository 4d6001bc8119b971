"""The limits on items with a throttle key."""

from __future__ import annotations

from dataclasses import dataclass

from foqs.bounds import Quota


@dataclass(frozen=True, slots=True)
class Throttle:
    """At most `burst` + `per_second` * t deliveries in any t seconds, and at most `concurrency` leases at a time. None:
    there is no such limit; one of them is there. `per_second` may be a fraction.

    A lease that is older than `timeout_ms` is counted as overage, and a shard without an owner counts for no longer; 0:
    never. `shadow`: the deliveries that it would hold are counted, and held back by nothing. `setting`: the settings
    key that it comes from, which may serve many throttle keys, each with tokens and slots of its own."""

    per_second: float | None
    burst: int
    shadow: bool
    setting: str
    concurrency: int | None = None
    timeout_ms: int = 0

    @property
    def quota(self) -> Quota | None:
        """The bound that the coordinator of a key goes by; None if there is no rate."""
        return None if self.per_second is None else Quota(self.per_second, self.burst, None)
