"""Which gates of a host are looked at, and asked about at their coordinators, and when: some at a time. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count, islice
from typing import Generic, TypeVar

from foqs.throttles.gate import Gate

F = TypeVar("F")
T = TypeVar("T")

AT_ONCE = 1_000
"""Keys that one turn of the event loop looks at or asks about: more would stall it."""


class Agenda(Generic[T, F]):
    """`turn_wanted`: take `due` and `fresh` soon. Times are monotonic."""

    __slots__ = ("_fresh", "_seq", "_timers", "_to_ask", "_turn_wanted", "_unsettled")

    def __init__(self, turn_wanted: Callable[[], None]) -> None:
        self._turn_wanted = turn_wanted
        self._to_ask: set[Gate[T, F]] = set()  # until `asked`
        self._fresh: deque[Gate[T, F]] = deque()  # new in `_to_ask`; some keys more than once
        self._unsettled: dict[Gate[T, F], None] = {}
        self._timers: list[tuple[int, int, Gate[T, F]]] = []
        self._seq = count(1)

    def __contains__(self, key: Gate[T, F]) -> bool:
        """Whether the key's coordinator is asked soon."""
        return key in self._to_ask

    def ask(self, key: Gate[T, F]) -> None:
        """Ask the key's coordinator soon."""
        if key not in self._to_ask:
            self._to_ask.add(key)
            self._fresh.append(key)
            self._turn_wanted()

    def asked(self, key: Gate[T, F]) -> None:
        """Note that the coordinator is asked now, or needs not be."""
        self._to_ask.discard(key)

    def ask_again(self, key: Gate[T, F]) -> None:
        """Ask in another turn: its coordinator may be another host by then."""
        self.asked(key)
        self.ask(key)

    def settle_soon(self, key: Gate[T, F]) -> None:
        """Look at the key in the next turn."""
        self._unsettled[key] = None
        self._turn_wanted()

    def settle_at(self, key: Gate[T, F], due_ms: int) -> None:
        """Look at the key then, or earlier."""
        if not key.timer_ms or due_ms < key.timer_ms:
            key.timer_ms = due_ms
            heappush(self._timers, (due_ms, next(self._seq), key))
            if self._timers[0][2] is key:
                self._turn_wanted()

    def schedule(self, key: Gate[T, F], at_ms: int) -> None:
        """Ask when there is something to ask for, unless a question is open."""
        if not key.asking and key not in self._to_ask:
            due_ms = key.next_ms(at_ms)
            if due_ms is not None:
                self.settle_at(key, due_ms) if due_ms > at_ms else self.ask(key)

    def due(self, at_ms: int) -> list[Gate[T, F]]:
        """Take keys to look at now."""
        found = list(islice(self._unsettled, AT_ONCE))
        for key in found:
            del self._unsettled[key]
        timers = self._timers
        while timers and timers[0][0] <= at_ms and len(found) < AT_ONCE:
            due_ms, _, key = heappop(timers)
            if key.timer_ms == due_ms:
                key.timer_ms = 0
                found.append(key)
        if self._unsettled:
            self._turn_wanted()
        return found

    def next_ms(self) -> int | None:
        """Return when keys are due by their time; it may be past. None if there is none."""
        return self._timers[0][0] if self._timers else None

    def fresh(self) -> list[Gate[T, F]]:
        """Take keys whose coordinators are asked now."""
        found = [self._fresh.popleft() for _ in range(min(AT_ONCE, len(self._fresh)))]
        if self._fresh:
            self._turn_wanted()
        return found

    def __repr__(self) -> str:
        return f"Agenda({len(self._to_ask)} to ask, {len(self._unsettled)} to settle, {len(self._timers)} timers)"
