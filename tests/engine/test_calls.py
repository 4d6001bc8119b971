"""The number of Python calls for a plain item is bounded, and deadlines come in order without ended requests."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

import foqs
from foqs.buffers.checkpoint import NEVER_MS
from foqs.engine.calls import FRESH, Deadlines, DequeueCall, EnqueueCall, ItemsCall
from foqs.item import Item
from foqs.rows import NewItem
from tests.engine.laboratory import KEY, Laboratory

PACKAGE = Path(foqs.__file__).parent
FOLDERS = tuple(str(PACKAGE / name) for name in ("engine", "fairness", "prefetch", "buffers", "leases", "item"))
ITEMS = 100


def cycle(lab: Laboratory, batch: int) -> None:
    """Enqueue ITEMS items in requests of `batch`, then dequeue and ack them in requests of `batch`."""
    for _ in range(0, ITEMS, batch):
        items = [NewItem(b"x", None, None, 0, lab.now_ms, 0, lab.now_ms, 0, 0, 1) for _ in range(batch)]
        call = EnqueueCall(batch, lambda outcomes: None)
        lab.engine.enqueue(call, range(batch), items, [KEY] * batch, [1] * batch, lab.now_ms, 5_000)
        lab.settle()
    acked = 0
    while acked < ITEMS:
        got: list[Item] = []

        def reply(items: list[Item], doubtful: list[int], got: list[Item] = got) -> bool:
            got += items
            return True

        lab.engine.dequeue(DequeueCall([(KEY, batch)], 60_000, 1 << 20, 0, reply), lab.now_ms, 0)
        ids, leases = [item.id for item in got], [item.lease for item in got]
        lab.engine.ack(ItemsCall(len(ids), lambda outcomes: None), ids, leases, "ns", lab.now_ms, 5_000)
        lab.settle()
        acked += len(got)


# What the code before the index of topics took for ITEMS items, by the size of the requests.
@pytest.mark.parametrize(("batch", "most"), [(1, 20_702), (10, 2_971), (100, 1_198)])
def test_calls_of_plain_items(batch: int, most: int) -> None:
    lab = Laboratory(1)
    cycle(lab, batch)
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, arg: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(FOLDERS):
            calls[f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_name}"] += 1

    sys.setprofile(count)
    try:
        cycle(lab, batch)
    finally:
        sys.setprofile(None)
    assert calls.total() <= most, calls.most_common(30)


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
    assert len(deadlines) <= 2 * len(living) + 2 * FRESH
