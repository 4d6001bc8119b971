"""The engine makes a bounded number of Python calls for a plain item.

Times differ from machine to machine, the number of calls does not.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import FrameType

import pytest

import foqs
from foqs.engine.calls import DequeueCall, EnqueueCall, ItemsCall
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
