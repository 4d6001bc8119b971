"""How many items of each topic this process holds and asks for, over all its workers and its clients of one namespace.
Counts for topics with a limit per process (`per_worker`).

A dequeue reports the items that the process holds and those that its other requests may bring, so all its requests
together never bring more than the limit. Hosts say in their replies which topics have a limit. When a process holds
fewer items, it ends the wait of the request that had no place, and asks again.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any
from weakref import WeakSet

from foqs.client.guard import renew_after_fork

_MOST = 0x7FFF_FFFF
_REMEMBERED = 100_000
"""Number of items of calls with a report whose ends of leases are noticed, the last ones."""

_numbers = count(1)


class Waker:
    """Wakes a thread that waits for a reply. Raises OSError where the process has no file descriptor left."""

    _read = _write = -1

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)

    def fileno(self) -> int:
        return self._read

    def wake(self) -> None:
        with suppress(BlockingIOError):  # it is awake
            os.write(self._write, b"\0")

    def rest(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._read, 1_024)

    def __del__(self) -> None:
        if self._read >= 0:
            os.close(self._read)
            os.close(self._write)


class Share:
    """What one worker holds. Items count from the reply that brought them until `remove`."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self.topics: dict[int, str] = {}  # by the id of each item
        self.waker: Waker | None = None
        self.stopped = False

    def stop(self) -> None:
        """End the wait of the worker's request for items, and of any later one."""
        self.stopped = True
        if self.waker is not None:
            self.waker.wake()

    def most(self, topics: Iterable[str]) -> int:
        """Return how many items of `topics` the process may hold, as far as hosts have named limits."""
        return sum(self._places.limit_of(topic) for topic in topics)

    def remove(self, ids: Iterable[int]) -> None:
        """Stop counting items that left the process, or were given up."""
        with _process.lock:
            topics = [topic for item_id in ids if (topic := self.topics.pop(item_id, None)) is not None]
            self._places.gave(topics, counted=True)

    def clear(self) -> None:
        """Stop counting all items, at the end of the worker."""
        self.remove(list(self.topics))


class Ask:
    """One request for items, until its reply. `counts` are the items to ask for, and `holding` the items to report,
    by topic.

    `cut`: the wait was ended, because the process holds fewer items or the worker stops. `learned`: the reply named
    another limit."""

    def __init__(self, places: Places, holder: Share | Mapping[str, int], waker: Waker | None) -> None:
        self.counts: dict[str, int] = {}
        self.holding: dict[str, int] = {}
        self.cut = self.learned = False
        self.number = next(_numbers)
        self.waker = waker
        self.share = holder if isinstance(holder, Share) else None
        self.given = {} if isinstance(holder, Share) else dict(holder)
        self._places = places

    def fileno(self) -> int:
        assert self.waker is not None, "the request waits"
        return self.waker.fileno()

    def cuts(self) -> bool:
        """Return True if the wait ends now, once. Called when `fileno` is readable."""
        assert self.waker is not None, "the request waits"
        self.waker.rest()
        with _process.lock:
            self.cut = self.stopped or self.cut or any(self in self._places.with_place(one) for one in self.counts)
            return self.cut

    @property
    def stopped(self) -> bool:
        """True if no request follows."""
        return self.share is not None and self.share.stopped

    def end(self, response: Any = None) -> None:
        """Take the response; None: there is none, and the process holds none of its items."""
        with _process.lock:
            self._places.ended(self, response)

    def reserved(self, topic: str, limit: int | None) -> int:
        """Return how many items of the topic the reply may bring."""
        wanted = self.counts[topic]
        return wanted if limit is None else max(0, min(wanted, limit - self.holding[topic]))


class Places:
    """The items and requests of one client. Thread-safe. `known` returns all addresses of its service, None while the
    client may not know all."""

    def __init__(self, namespace: str, known: Callable[[], Collection[object] | None]) -> None:
        self._namespace = namespace
        self._known = known
        self._start()
        with _process.lock:
            _process.all.add(self)
        renew_after_fork(self)

    def _start(self) -> None:
        self.remembered: dict[int, str] = {}
        self._held = Counter[str]()
        self._asks: dict[str, list[Ask]] = {}
        self._limits: dict[str, int] = {}

    def after_fork(self) -> None:
        """The parent holds its items."""
        self._start()

    def share(self) -> Share:
        """Return the share of a worker that begins."""
        return Share(self)

    def ask(
        self, counts: Mapping[str, int], holder: Share | Mapping[str, int], *, wait: bool, acked: Sequence[Any] = ()
    ) -> Ask:
        """Begin a request for items. `holder`: the worker, or how many items of each topic the caller says that the
        process holds. `acked`: items whose acks go with the request, which leave their places to it."""
        leaving = Counter(item.topic for item in acked)
        with _process.lock:
            waker = None
            if wait and isinstance(holder, Share):
                waker = holder.waker = holder.waker or _waker()
                if holder.stopped and waker is not None:
                    waker.wake()
            elif wait:
                waker = _waker()
            ask, linked = Ask(self, holder, waker), self._linked()
            for topic, wanted in counts.items():
                limit = self._limits.get(topic)
                asks = _asks(linked, topic)
                taken = self._taken(linked, topic, ask) - leaving[topic]
                holding = taken + (sum([one.reserved(topic, limit) for one in asks]) if asks else 0)
                if limit is not None and holding >= limit:  # behind those that wait as well
                    holding = taken + sum(one.reserved(topic, limit) or one.counts[topic] for one in asks)
                elif limit is not None:
                    wanted = min(wanted, limit - holding)  # noqa: PLW2901
                ask.counts[topic], ask.holding[topic] = wanted, max(0, min(holding, _MOST))
            for topic in ask.counts:
                self._asks.setdefault(topic, []).append(ask)
            return ask

    def limit_of(self, topic: str) -> int:
        """Return the limit of a topic; a very large number without one."""
        return self._limits.get(topic, _MOST)

    def left(self, ids: Iterable[int]) -> None:
        """Take the ends of leases of items that a call with a report brought."""
        with _process.lock:
            topics = [topic for item_id in ids if (topic := self.remembered.pop(item_id, None)) is not None]
            self.gave(topics, counted=False)

    # ------------------------------------------------------------------------------------- with the lock

    def ended(self, ask: Ask, response: Any) -> None:
        """Remove a request, and count the items of its response."""
        for topic in ask.counts:
            asks = self._asks[topic]
            asks.remove(ask)
            if not asks:
                del self._asks[topic]
        if response is not None:
            limits = response.per_worker or {}
            for item in response.items or ():
                if ask.share is not None and item.id not in ask.share.topics:
                    ask.share.topics[item.id] = item.topic
                    self._held[item.topic] += 1
                elif ask.share is None and item.topic in limits:
                    self.remembered[item.id] = item.topic
            while len(self.remembered) > _REMEMBERED:
                del self.remembered[next(iter(self.remembered))]
            for topic in ask.counts:
                ask.learned |= self._learn(topic, limits.get(topic))
        self._wake(ask.counts)

    def gave(self, topics: Sequence[str], *, counted: bool) -> None:
        """Free the places of items that the process no longer holds, by topic. `counted`: a worker held them."""
        for topic in topics:
            if counted and self._held[topic] > 1:
                self._held[topic] -= 1
            elif counted:
                del self._held[topic]
            for places in self._linked() if topic in self._limits else ():
                for ask in places._asks.get(topic, ()):
                    ask.given[topic] = max(0, ask.given.get(topic, 0) - 1)
        self._wake(dict.fromkeys(topics))

    def with_place(self, topic: str) -> Iterator[Ask]:
        """Yield the requests to which no host gives an item of the topic, though the process may have one."""
        limit = self._limits.get(topic)
        if limit is None:
            return
        linked = self._linked()
        asks = _asks(linked, topic)
        reserved = sum(ask.reserved(topic, limit) for ask in asks)
        for ask in asks:
            if ask.waker is not None and not ask.reserved(topic, limit):
                if self._taken(linked, topic, ask) + reserved >= limit:
                    continue
                reserved += ask.counts[topic]
                yield ask

    def _wake(self, topics: Iterable[str]) -> None:
        for topic in topics if self._limits else ():
            for ask in self.with_place(topic):
                if ask.waker is not None:
                    ask.waker.wake()

    def _learn(self, topic: str, limit: int | None) -> bool:
        """Note the limit of a topic. Return True if it is another one."""
        before = self._limits.get(topic)
        for places in self._linked() if limit != before else ():
            if limit is None:
                places._limits.pop(topic, None)
            else:
                places._limits[topic] = limit
        return limit != before

    def _taken(self, linked: Sequence[Places], topic: str, ask: Ask) -> int:
        """Return how many items the process holds, as far as its workers or the caller of `ask` know."""
        held = self._held.get(topic, 0) if len(linked) < 2 else sum([places._held.get(topic, 0) for places in linked])
        return max(held, ask.given.get(topic, 0)) if ask.given else held

    def _linked(self) -> Sequence[Places]:
        """Return the places of all clients of the same service and namespace. Clients that do not know all addresses of
        their services yet may be of one."""
        same = [places for places in _process.all if places._namespace == self._namespace]
        if len(same) < 2:
            return same
        mine = self._known()
        found = []
        for places in same:
            known = None if places is self or mine is None else places._known()
            if mine is None or known is None or any(address in mine for address in known):
                found.append(places)
        return found


def _waker() -> Waker | None:
    """Return a new waker. Without one, a request waits for the whole time that the caller gave."""
    try:
        return Waker()
    except OSError:  # the process has no file descriptor left
        return None


def _asks(linked: Sequence[Places], topic: str) -> Sequence[Ask]:
    """Return the requests for items of the topic, the oldest first."""
    if len(linked) < 2:
        return linked[0]._asks.get(topic, ())
    return sorted([ask for places in linked for ask in places._asks.get(topic, ())], key=lambda ask: ask.number)


class _Process:
    def __init__(self) -> None:
        self.all: WeakSet[Places] = WeakSet()
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        self.lock = threading.RLock()  # a signal handler may call a client


_process = _Process()
