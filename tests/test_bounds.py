"""Bounds on rates: how often each source may act, and how many lines of one kind are written."""

from hypothesis import given
from hypothesis import strategies as st

from foqs import bounds
from foqs.bounds import LogThrottle, RateLimit


def test_a_second_s_worth_at_once_and_then_evenly() -> None:
    one = RateLimit(4)
    assert [one.wait_ms("a", 10.0) for _ in range(5)] == [0, 0, 0, 0, 250]
    assert one.wait_ms("b", 10.0) == 0
    assert [one.wait_ms("a", 10.25), one.wait_ms("a", 10.25)] == [0, 250]
    assert [one.wait_ms("a", 12.0) for _ in range(5)] == [0, 0, 0, 0, 250]


@given(st.integers(1, 1_000), st.lists(st.floats(0, 2, allow_nan=False), max_size=200))
def test_one_second_has_at_most_two_seconds_worth_of_events(a_second: int, gaps: list[float]) -> None:
    """The limit also allows the event of a source that has waited for `wait_ms`."""
    one, now_s, done = RateLimit(a_second), 5.0, []
    for gap in gaps:
        now_s += gap
        wait_ms = one.wait_ms("a", now_s)
        if wait_ms:
            now_s += wait_ms / 1_000
            assert one.wait_ms("a", now_s) == 0
        done.append(now_s)
    for at, begun in enumerate(done):
        assert len([one for one in done[at:] if one <= begun + 1 - 1e-6]) <= 2 * a_second


def test_sources_are_forgotten_before_they_are_too_many() -> None:
    one = RateLimit(1)
    for number in range(bounds._MOST_SOURCES + 10):
        assert one.wait_ms(str(number), 1.0) == 0
    assert len(one._until_ns) == bounds._MOST_SOURCES
    assert one.wait_ms(str(bounds._MOST_SOURCES), 1.0) == 1_000
    assert one.wait_ms("0", 1.0) == 0


def test_lines_are_bounded_and_those_left_out_are_counted() -> None:
    lines = LogThrottle(a_second=2)
    assert [lines.take(10.0), lines.take(10.1), lines.take(10.2), lines.take(10.9)] == [0, 0, None, None]
    assert [lines.take(11.0), lines.take(11.0), lines.take(11.5)] == [2, 0, None]
    assert lines.take(50.0) == 1
