"""Deadlines: due requests come in order, ended ones do not, and the dead take no room."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from foqs.buffers.checkpoint import NEVER_MS
from foqs.engine.calls import Deadlines


class Waiting:
    def __init__(self) -> None:
        self.done = False


@given(st.lists(st.tuples(st.integers(0, 100), st.booleans()), max_size=60), st.integers(0, 100))
def test_due_requests_come_earliest_first(found: list[tuple[int, bool]], now_ms: int) -> None:
    deadlines: Deadlines[Waiting] = Deadlines()
    alive = []
    for at_ms, done in found:
        one = Waiting()
        one.done = done
        deadlines.push(at_ms, one)
        if not done:
            alive.append((at_ms, one))
    alive.sort(key=lambda pair: pair[0])
    assert deadlines.next_ms() == (alive[0][0] if alive else NEVER_MS)
    assert deadlines.pop_due(now_ms) == [one for at_ms, one in alive if at_ms <= now_ms]
    later = [at_ms for at_ms, _ in alive if at_ms > now_ms]
    assert deadlines.next_ms() == (later[0] if later else NEVER_MS)


def test_requests_that_end_early_leave_no_trace() -> None:
    deadlines: Deadlines[Waiting] = Deadlines()
    living = [Waiting() for _ in range(100)]
    for one in living:
        deadlines.push(1_000_000, one)
    for at_ms in range(100_000):
        one = Waiting()
        deadlines.push(at_ms + 30_000, one)
        one.done = True
    assert len(deadlines) <= 2 * len(living) + 16
