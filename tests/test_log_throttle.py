"""How many lines of one kind are let through."""

from foqs.bounds import LogThrottle


def test_lines_are_bounded_and_those_left_out_are_counted() -> None:
    lines = LogThrottle(a_second=2)
    assert [lines.take(10.0), lines.take(10.1), lines.take(10.2), lines.take(10.9)] == [0, 0, None, None]
    assert [lines.take(11.0), lines.take(11.0), lines.take(11.5)] == [2, 0, None]
    assert lines.take(50.0) == 1
