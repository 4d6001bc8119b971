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
"""The share of a processor at which a host cannot take more work."""
CALM = 0.5
"""The share of a processor below which the load of all hosts fits one host."""
LOUD_MS = 5_000
"""How long the load of all hosts must be small before the cluster is quiet again."""


class Quiet:
    """The decision, from the share of a processor that this host used in each turn."""

    def __init__(self) -> None:
        self._loud_until_ms = 0

    def used(self, share: float, hosts: int, now_ms: int) -> bool:
        """Return True if the cluster is quiet. While it is not, each of `hosts` has a part of the load."""
        most = BUSY if now_ms >= self._loud_until_ms else CALM / max(1, hosts)
        if share >= most:
            self._loud_until_ms = now_ms + LOUD_MS
        return now_ms >= self._loud_until_ms


class Load:
    """Measures the host's processor time in each turn. `changed` is called when `quiet` has changed. `hosts()`: the
    number of hosts of the cluster. `used_s()`: the processor time of this process so far."""

    def __init__(
        self,
        hosts: Callable[[], int],
        changed: Callable[[], None],
        timers: Timers,
        used_s: Callable[[], float] = process_time,
    ) -> None:
        self.quiet = False
        self._hosts = hosts
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
        quiet = self._decision.used(share, self._hosts(), now_ms)
        if quiet != self.quiet:
            self.quiet = quiet
            self._changed()
        self._next()
