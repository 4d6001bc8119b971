"""The load of a host, which says if the cluster is quiet: one host at a time has time for all small requests.

Clients of a quiet cluster send small requests to one host at a time (`Routes.host_in_turn`). So the requests of several
clients share transactions, and consumers find items where they ask. The host whose turn it is sees the load of all.
"""

from __future__ import annotations

from collections.abc import Callable
from time import process_time

from foqs.bounds import TURN_MS
from foqs.peers.forwarded import Timers

BUSY = 0.9
"""The load at which a host should get no more work: 1 is a whole processor, or MANY_ROWS."""
CALM = 0.5
"""The load of all hosts for which a single host has time."""
MANY_ROWS = 1_000
"""New items that wait for their databases."""
LOUD_MS = 5_000
"""How long the load of all hosts must be small before the cluster is quiet again."""


class Quiet:
    """The decision, from the load of this host in each turn."""

    def __init__(self) -> None:
        self._loud_until_ms = 0

    def after(self, load: float, hosts: int, now_ms: int) -> bool:
        """Return True if the cluster is quiet. While it is not, each of `hosts` has a part of the load."""
        most = BUSY if now_ms >= self._loud_until_ms else CALM / max(1, hosts)
        if load >= most:
            self._loud_until_ms = now_ms + LOUD_MS
        return now_ms >= self._loud_until_ms


class Load:
    """A meter of the host's load in each turn. `changed` is called when `quiet` has changed.

    hosts    the number of hosts of the cluster
    rows     the number of new items that wait for their databases here
    used_s   the processor time of this process so far
    """

    def __init__(
        self,
        hosts: Callable[[], int],
        rows: Callable[[], int],
        changed: Callable[[], None],
        timers: Timers,
        used_s: Callable[[], float] = process_time,
    ) -> None:
        self.quiet = False
        self._hosts = hosts
        self._rows = rows
        self._changed = changed
        self._timers = timers
        self._used_s = used_s
        self._decision = Quiet()
        self._ended = False

    def begin(self) -> None:
        """Measure from now on, until `end`. Without this, the cluster is not quiet."""
        self.quiet = True
        self._began_s, self._began_ms = self._used_s(), self._timers.monotonic_ms()
        self._next()

    def end(self) -> None:
        self._ended = True

    def _next(self) -> None:
        left_ms = TURN_MS - self._timers.now_ms() % TURN_MS
        self._timers.later(left_ms if left_ms > TURN_MS // 2 else left_ms + TURN_MS, self._measure)

    def _measure(self) -> None:
        if self._ended:
            return
        used_s, now_ms = self._used_s(), self._timers.monotonic_ms()
        share = 1_000 * (used_s - self._began_s) / max(1, now_ms - self._began_ms)
        self._began_s, self._began_ms = used_s, now_ms
        quiet = self._decision.after(max(share, self._rows() / MANY_ROWS), self._hosts(), now_ms)
        if quiet != self.quiet:
            self.quiet = quiet
            self._changed()
        self._next()
