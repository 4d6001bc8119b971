"""The limit on deliveries of items with a throttle key."""

from __future__ import annotations

from dataclasses import dataclass

from foqs.quota import Quota


@dataclass(frozen=True, slots=True)
class Throttle:
    """At most `burst` + `per_second` * t deliveries in any t seconds; `per_second` may be a fraction.

    `shadow`: the deliveries that it would hold are counted, and held back by nothing. `setting`: the settings key that
    it comes from, which may serve many throttle keys, each with tokens of its own."""

    per_second: float
    burst: int
    shadow: bool
    setting: str

    @property
    def quota(self) -> Quota:
        """The bound that the coordinator of a key goes by."""
        return Quota(self.per_second, self.burst, None)
