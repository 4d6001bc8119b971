"""The items that a dequeue takes of one tenant."""

from __future__ import annotations

from collections.abc import Sequence

from foqs.engine import sources
from foqs.engine.state import State
from foqs.fairness.tenants import Flow
from foqs.item import Item
from foqs.prefetch.lane import Entry, Lane, take

_NONE: list[Entry[Item]] = []


class Taking:
    """What a round takes of one tenant: of `entries`, those before `at` are taken, and those before `upto` are next.

    They are the entries of the window of `lane`; where that is None, the first of several `lanes`. Of these, `paged`
    have more rows behind their window, and those in `parked` flows give no more."""

    __slots__ = ("at", "entries", "lane", "lanes", "paged", "parked", "size", "upto")

    def __init__(self) -> None:
        self.lane: Lane[Item] | None = None
        self.lanes: Sequence[Lane[Item]] = ()
        self.paged: Sequence[sources.Source] = ()
        self.entries: list[Entry[Item]] = _NONE
        self.parked: set[Flow[Lane[Item]]] | None = None
        self.at = self.upto = 0
        self.size = 1

    def finish(self, state: State) -> None:
        """Take the taken entries out of the windows, and ask for what they lack. Nothing is left of the taking."""
        at, entries, lane = self.at, self.entries, self.lane
        if lane is not None:
            if at:
                lane.lease(entries[:at])
                del entries[:at]
            window = lane.window
            if window is not None and window.more:
                sources.ask_pages(state, ((lane.tenure.shard, lane, window),))
        else:
            lanes, parked = self.lanes, self.parked
            if at and parked is not None:
                lanes = [lane for lane in lanes if lane.flow not in parked]
            if at:
                take(lanes, entries[at - 1])
            if self.paged:
                sources.ask_pages(state, self.paged)
        self.entries, self.at, self.upto = _NONE, 0, 0
