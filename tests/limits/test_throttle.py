"""The bound of a throttle, in whole and fractional rates."""

from __future__ import annotations

from foqs.policies.entries import Throttle


def test_six_a_minute_is_counted_exactly() -> None:
    quota = Throttle(0.1, 2, False, "throttle.api").quota
    assert quota.nano_per_ms == 100_000
    assert quota.ms_for(1) == 10_000
    assert quota.ms_for(5) == 20_000  # never more than the burst
