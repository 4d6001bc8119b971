from hypothesis import given
from hypothesis import strategies as st

from foqs.client import Backoff


@given(
    st.builds(
        Backoff,
        first_ms=st.integers(1, 10_000),
        factor=st.floats(1, 10),
        longest_ms=st.integers(1, 1_000_000),
        jitter=st.floats(0, 1),
    ),
    st.integers(0, 100_000),
    st.floats(0, 1, exclude_max=True),
)
def test_it_grows_to_its_cap_and_jitter_only_shortens(backoff, attempt, random):
    delay = backoff.delay_ms(attempt, lambda: random)
    whole = backoff.delay_ms(attempt, lambda: 0.0)
    assert 0 <= delay <= whole <= backoff.longest_ms
    assert delay >= int(whole * (1 - backoff.jitter)) - 1
    assert backoff.delay_ms(attempt + 1, lambda: 0.0) >= whole


def test_doubling():
    backoff = Backoff(first_ms=100, longest_ms=1_000, jitter=0)
    assert [backoff.delay_ms(n, lambda: 0.0) for n in range(1, 7)] == [100, 200, 400, 800, 1_000, 1_000]
