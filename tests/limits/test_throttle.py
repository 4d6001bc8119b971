"""The bound of a throttle, in whole and fractional rates."""

from __future__ import annotations

from itertools import count

from foqs.limits.allowance import Allowance
from foqs.limits.bucket import Grant
from foqs.limits.throttle_key import ThrottleKey
from foqs.policies.entries import Throttle


def test_six_a_minute_is_counted_exactly() -> None:
    quota = Throttle(0.1, 2, False, "throttle.api").quota
    assert quota.nano_per_ms == 100_000
    assert quota.ms_for(1) == 10_000
    assert quota.ms_for(5) == 20_000  # never more than the burst


def used_key(burst: int) -> ThrottleKey[str, str]:
    """A key that used 90 tokens half a second ago, and more since."""
    throttle = Throttle(1_000, burst, False, "throttle.api")
    key: ThrottleKey[str, str] = ThrottleKey("ns", "api", throttle, 1, Allowance(0, count(1)), 0)
    for now_ms in (1_000, 1_500):
        use(key, asked(key, now_ms, 90), now_ms)
        key.tend(now_ms)
    return key


def asked(key: ThrottleKey[str, str], now_ms: int, need: int, short: int = 0) -> int:
    """Ask for tokens, and get them but for a `short` number. Return how many were wanted."""
    ask = key.ask(need, now_ms, 1)
    assert ask is not None
    key.answered(ask, Grant(ask.wanted - short, True, 5), now_ms, 0)
    return ask.wanted


def use(key: ThrottleKey[str, str], tokens: int, now_ms: int) -> None:
    assert key.spend(now_ms, tokens)


def test_a_key_that_never_waits_is_asked_ahead() -> None:
    key = used_key(100_000)
    assert key.allowance.aim > 10
    wanted = asked(key, 1_500, 1, short=5)  # other hosts have the rest
    assert wanted == 1 + key.allowance.aim
    use(key, wanted - 5, 1_600)
    assert asked(key, 2_499, 1) == 1
    use(key, 1, 2_499)
    assert asked(key, 2_500, 1) > 1


def test_a_host_holds_no_slow_key_ahead() -> None:
    assert asked(used_key(199), 1_500, 1) == 2
    assert asked(used_key(99), 1_500, 1) == 1
