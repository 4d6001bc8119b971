"""Chooses windows that give back memory when more than their share of the byte budget is used.

A clock hand moves over all windows, a bounded number of steps a call. A window with a waiting consumer, or with a page
in flight, keeps its rows. All other windows give back in this order: windows that no dequeue asked for recently, whole;
then the far half of recently used windows. Taking items from a window costs nothing here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container
from typing import Any, Protocol

from foqs.bounds import Budget
from foqs.fairness.keys import TopicKey
from foqs.prefetch.lane import Lane, Window

WINDOW_SHARE = 0.7
"""Windows and their bodies may fill this much of the byte budget; the rest is kept for input and output."""
_LOW_SHARE = WINDOW_SHARE - 1 / 32
"""Windows that exceed their share give back until this much is left, so that they do not give back item by item."""
_RECENT_MS = 1_000
"""A window that a dequeue asked for within this time is likely to be asked for again."""
_STEPS = 1_000
"""Windows looked at in one call: the event loop must not stop for a walk over all of them."""


class Holder(Protocol):
    """A shard: it owns the windows of its lanes."""

    def drop_window(self, lane: Lane[Any]) -> None: ...

    def cut_window(self, window: Window[Any], keep: int) -> None: ...


class Residents:
    """All windows of a host. `demanded` holds the keys that consumers wait for."""

    def __init__(self, budget: Budget, demanded: Container[TopicKey], now_ms: Callable[[], int]) -> None:
        self.demanded = demanded
        self._budget = budget
        self._now_ms = now_ms
        self._holders: OrderedDict[Lane[Any], Holder] = OrderedDict()
        self._fruitless_ms = -1  # when the last call found nothing to give back

    def add(self, lane: Lane[Any], holder: Holder) -> None:
        """`lane` has a window now."""
        self._holders[lane] = holder

    def discard(self, lane: Lane[Any]) -> None:
        """`lane` has no window now."""
        self._holders.pop(lane, None)

    @property
    def full(self) -> bool:
        return not self._budget.fits(0, WINDOW_SHARE)

    def room_bytes(self, most_bytes: int) -> int:
        """Return how much a read may bring into memory: up to `most_bytes`. Windows give back what they can for it.

        A small part is always free: a dequeue continues even if no window may give back."""
        limit_bytes = self._budget.limit_bytes
        if not self._budget.fits(most_bytes, WINDOW_SHARE):
            self.relieve()
        room_bytes = int(limit_bytes * WINDOW_SHARE) - self._budget.used_bytes
        return min(most_bytes, max(room_bytes, limit_bytes // 64))

    def relieve(self) -> None:
        """Let windows give back memory until they are well within their share, or have nothing left to give."""
        now_ms = self._now_ms()
        if now_ms == self._fruitless_ms:
            return  # one batch of reads calls this very often
        before_bytes = self._budget.used_bytes
        if not self._go_round(_LOW_SHARE, now_ms - _RECENT_MS, _STEPS):
            self._go_round(_LOW_SHARE, None, _STEPS)
        if self._budget.used_bytes == before_bytes:
            self._fruitless_ms = now_ms

    def drop_idle(self, share: float, idle_ms: int, steps: int) -> None:
        """Drop windows that no dequeue asked for in `idle_ms`, while more than `share` of the budget is used."""
        self._go_round(share, self._now_ms() - idle_ms, steps)

    def _go_round(self, share: float, used_before_ms: int | None, steps: int) -> bool:
        """Drop windows that were last asked for before that time; None: halve all. Return True if no more than `share`
        is used."""
        holders, budget = self._holders, self._budget
        for _ in range(min(steps, len(holders))):
            if budget.fits(0, share):
                return True
            lane = next(iter(holders))
            if lane.term.shard is None:  # it has given everything back, and is detached later
                del holders[lane]
                continue
            window = lane.window
            assert window is not None, "a lane without a window was not discarded"
            if window.asked_ms or (lane.topic.key in self.demanded and self._soon(lane, window)):
                holders.move_to_end(lane)
            elif used_before_ms is None and len(window) > 1:
                holders[lane].cut_window(window, len(window) // 2)
                holders.move_to_end(lane)
            elif used_before_ms is None or window.used_ms <= used_before_ms:
                holders[lane].drop_window(lane)
            else:
                holders.move_to_end(lane)
        return budget.fits(0, share)

    def _soon(self, lane: Lane[Any], window: Window[Any]) -> bool:
        """Return True if waiting consumers of the lane's topic are likely to get its items next. Where tenants take
        turns, a dequeue asked for the windows of the next ones."""
        return lane.flow is None or window.used_ms > self._now_ms() - _RECENT_MS

    def __len__(self) -> int:
        return len(self._holders)

    def __repr__(self) -> str:
        return f"Residents({len(self._holders)} windows, {self._budget})"
