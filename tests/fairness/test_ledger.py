"""By how many deliveries an item was overtaken: those that did not come before it when it became ready."""

from __future__ import annotations

import pytest

from foqs.fairness import ledger
from foqs.fairness.ledger import Ledgers
from foqs.prefetch.lane import Entry, Window

KEY, OTHER = ("n", "t"), ("n", "other")


class Rig:
    """A topic with windows, whose items have no bodies."""

    def __init__(self, *windows: Window[None]) -> None:
        self.ledgers = Ledgers()
        self.ledgers.ask([KEY], 0)
        self.windows = windows or (Window[None](complete=True, page_rows=10),)

    def ready(self, *items: tuple[int, int], at: int = 0) -> None:
        """Items (priority, id) become ready in a window."""
        entries: list[Entry[None]] = [(priority, 0, item_id, None) for priority, item_id in items]
        self.windows[at].add_all(entries)
        self.ledgers.became_ready(KEY, "", self.windows, entries)

    def deliver(self, *item_ids: int) -> list[int | None]:
        found = self.ledgers.overtaken(KEY, [("", item_id) for item_id in item_ids])
        self.ledgers.delivered((KEY, "", item_id) for item_id in item_ids)
        for window in self.windows:
            window.entries = [entry for entry in window.entries if entry[2] not in item_ids]
        assert all(one is None or one.others == 0 for one in found)
        return [one and one.own for one in found]


def test_items_in_their_order_are_not_overtaken() -> None:
    rig = Rig()
    rig.ready((0, 1), (0, 2), (0, 3))
    assert rig.deliver(1, 2) == [0, 0]
    rig.ready((0, 4))
    assert rig.deliver(3, 4) == [0, 0]


def test_more_urgent_items_overtake() -> None:
    rig = Rig()
    rig.ready((5, 1), (5, 2))
    rig.ready((1, 3), (1, 4), (1, 5))
    assert rig.deliver(3, 4) == [0, 0]
    assert rig.deliver(5, 1, 2) == [0, 3, 3]


def test_items_of_all_windows_come_before() -> None:
    rig = Rig(*(Window[None](complete=True, page_rows=10) for _ in range(2)))
    rig.ready((0, 1), (0, 3))
    rig.ready((0, 2), (0, 4), at=1)
    assert rig.deliver(1, 2, 3, 4) == [0, 0, 1, 0]


def test_an_item_that_returns_begins_again() -> None:
    rig = Rig()
    rig.ready((5, 1))
    rig.ready((0, 2))
    assert rig.deliver(2, 1) == [0, 1]
    rig.ready((5, 1))
    assert rig.deliver(1) == [0]


def test_an_item_behind_unknown_ones_has_no_number() -> None:
    rig = Rig(Window[None](complete=True, page_rows=10), Window[None](complete=False, page_rows=10))
    rig.ready((0, 1))
    rig.windows[1].end = (3, 0, 0)
    rig.ready((2, 2), (4, 3))
    rig.ledgers.became_ready(KEY, "", [None], [(0, 0, 4, None)])
    assert rig.deliver(1, 2, 3, 4) == [None, 0, None, None]


def test_only_topics_that_are_asked_for_are_known() -> None:
    rig = Rig()
    rig.ledgers.became_ready(OTHER, "", rig.windows, [(0, 0, 7, None)])
    assert rig.ledgers.overtaken(OTHER, [("", 7)]) == [None]
    rig.ready((0, 1))
    rig.ledgers.ask([OTHER], 30_000)
    rig.ledgers.forget(59_999)
    assert set(rig.ledgers) == {KEY, OTHER}
    rig.ledgers.forget(60_000)
    assert set(rig.ledgers) == {OTHER}
    assert rig.deliver(1) == [None]


def test_topics_and_items_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "_MOST_TOPICS", 2)
    monkeypatch.setattr(ledger, "_ITEMS", 3)
    rig = Rig()
    rig.ledgers.ask([OTHER, ("n", "third")], 0)
    assert set(rig.ledgers) == {KEY, OTHER}
    rig.ready((0, 1), (0, 2), (0, 3), (0, 4))
    rig.ledgers.became_ready(OTHER, "", rig.windows, [(0, 0, 7, None)])
    assert rig.ledgers.overtaken(OTHER, [("", 7)]) == [None], "it has none to give up"
    assert rig.deliver(1, 2, 3, 4) == [None, 0, 0, 0]
    rig.ready((0, 5), (0, 6), (0, 7))
    assert rig.deliver(5, 6, 7) == [0, 0, 0], "delivered items give their places back"


def test_turns_of_other_tenants_do_not_overtake() -> None:
    ledgers, entries = Ledgers(), {}
    ledgers.ask([KEY], 0)
    windows = {tenant: Window[None](complete=True, page_rows=10) for tenant in "ab"}

    def ready(tenant: str, *items: tuple[int, int]) -> None:
        entries[tenant] = [(priority, 0, item_id, None) for priority, item_id in items]
        windows[tenant].add_all(entries[tenant])
        ledgers.became_ready(KEY, tenant, [windows[tenant]], entries[tenant])

    def deliver(*items: tuple[str, int]) -> list[tuple[int, int] | None]:
        found = ledgers.overtaken(KEY, items)
        ledgers.delivered((KEY, *item) for item in items)
        for window in windows.values():
            window.entries = [entry for entry in window.entries if entry[2] not in {item_id for _, item_id in items}]
        return [one and tuple(one) for one in found]

    ready("a", (5, 1), (5, 2), (5, 3))
    ready("b", (0, 4))
    assert deliver(("a", 1), ("b", 4), ("a", 2)) == [(0, 0), (0, 1), (0, 1)]
    ready("a", (1, 5))
    ready("b", (0, 6), (0, 7))
    assert deliver(("b", 6), ("a", 5)) == [(0, 0), (0, 1)]
    assert deliver(("b", 7), ("a", 3)) == [(0, 1), (1, 3)], "a more urgent item of its tenant, and three of b"
    assert ledgers[KEY].owns == {}, "a tenant is known while items of it are"
