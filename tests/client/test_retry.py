"""How long a client waits before it repeats a request."""

from hypothesis import given
from hypothesis import strategies as st

from foqs.client.timing import REQUEST_AGAIN, pause_ms


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_pauses_grow_and_are_bounded(tries, random):
    pause = pause_ms(tries, None, lambda: random)
    assert 0 < pause <= REQUEST_AGAIN.longest_ms
    assert pause_ms(tries + 1, None, lambda: random) >= pause


@given(st.integers(1, 10_000), st.integers(1, 10_000_000), st.floats(0, 1, exclude_max=True))
def test_the_servers_wish_is_a_lower_bound_with_jitter(tries, hint_ms, random):
    assert hint_ms <= pause_ms(tries, hint_ms, lambda: random) <= hint_ms * 1.5
