"""One lease that a worker holds."""

from __future__ import annotations

import threading
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from foqs.client.items import Delivery, Item

if TYPE_CHECKING:
    from foqs.client.work_span import WorkSpan


class Held:
    """One lease. Times are of the monotonic clock, in seconds.

    `id`, `lease`, `topic`, `attempt` and `delivery` are the item's as they came: a handler may change its item.

    `gone`: the server said that the lease is over. `settling`: the item's ack or nack is being sent to the
    server. `doubtful`: an ack was sent and its reply lost. `lost`: the handler's event, once there is a
    handler. `traced`: the span of its work, where that is traced. `asked`: how often an extension was answered, or
    given up. `waits`: the server takes the item as not begun. `stop_at`: when the time limit of its work is over; `up`:
    the handler's event then. `late`: the lease is not extended, as the time is up, or the item was acked first.
    """

    __slots__ = (
        "asked", "attempt", "delivery", "doubtful", "expires", "extend_at", "gone", "id", "item", "late", "lease",
        "lost", "settling", "stop_at", "topic", "traced", "up", "waits",
    )  # fmt: skip

    def __init__(self, item: Item, expires: float, extend_at: float) -> None:
        self.item = item
        self.id = item.id
        self.lease = item.lease
        self.topic = item.topic
        self.attempt = item.attempt
        self.delivery = item.delivery
        self.expires = expires
        self.extend_at = extend_at
        self.asked = 0
        self.gone = False
        self.settling = False
        self.doubtful = False
        self.waits = False
        self.late = False
        self.stop_at: float | None = None
        self.lost: threading.Event | None = None
        self.up: threading.Event | None = None
        self.traced: WorkSpan | None = None

    @property
    def at_most_once(self) -> bool:
        return self.delivery == Delivery.AT_MOST_ONCE

    def usable(self, now: float) -> bool:
        """Whether work on the item may be begun."""
        return not self.gone and now < self.expires

    def event(self) -> threading.Event:
        """Set when the lease is over, or may be. Called by the handler's thread only; made when it is asked for."""
        if self.lost is None:
            self.lost = threading.Event()
            if not self.usable(monotonic()):
                self.lost.set()
        return self.lost

    def time_is_up(self) -> threading.Event:
        """Set when the time limit is over. Made before the limit is set, or when it is asked for."""
        if self.up is None:
            self.up = threading.Event()
        return self.up

    def acked(self) -> None:
        """The item is gone, and the work on it is not begun: there is no lease to extend, or to lose."""
        self.late = True
        self.expires = inf

    def tell(self) -> None:
        if self.traced is not None:  # first: a handler that hears of it may return at once, and its span end
            self.traced.lease_lost()
        if self.lost is not None:
            self.lost.set()

    def __str__(self) -> str:
        """The item, for a line of the log."""
        return f"Item({self.id} topic={self.topic!r} attempt={self.attempt})"

    def __repr__(self) -> str:
        return f"Held({self} {'gone' if self.gone else 'until'} {self.expires:.3f})"
