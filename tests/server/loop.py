"""An event loop that a test turns by hand."""

from __future__ import annotations

import select
from collections.abc import Callable


class Handle:
    def __init__(self, at_s: float, do: Callable[[], None]) -> None:
        self.at_s = at_s
        self.do = do
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class HandLoop:
    """The part of asyncio's loop that timers need. `set` has the timers that are not cancelled."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self._turn: list[Callable[[], None]] = []
        self._timers: list[Handle] = []

    def time(self) -> float:
        return self.now_s

    def call_soon(self, do: Callable[[], None]) -> None:
        self._turn.append(do)

    def call_later(self, after_s: float, do: Callable[[], None]) -> Handle:
        return self.call_at(self.now_s + after_s, do)

    def call_at(self, at_s: float, do: Callable[[], None]) -> Handle:
        self._timers.append(Handle(at_s, do))
        return self._timers[-1]

    @property
    def turns(self) -> int:
        """Callbacks of the next turn."""
        return len(self._turn)

    @property
    def set(self) -> list[int]:
        """Milliseconds from now to each timer."""
        return sorted(round((one.at_s - self.now_s) * 1_000) for one in self._timers if not one.cancelled)

    def run(self) -> None:
        turn, self._turn = self._turn, []
        for do in turn:
            do()

    def wait(self, by_ms: int) -> None:
        self.now_s += by_ms / 1_000
        due = [one for one in self._timers if not one.cancelled and one.at_s <= self.now_s + 1e-9]
        self._timers = [one for one in self._timers if not one.cancelled and one not in due]
        for one in due:
            one.do()


class WatchingLoop(HandLoop):
    """With files, as `add_reader` and `add_writer` watch them. `watched` counts how often a reader was set."""

    def __init__(self) -> None:
        super().__init__()
        self.readers: dict[int, Callable[[], None]] = {}
        self.writers: dict[int, Callable[[], None]] = {}
        self.watched = 0

    def add_reader(self, fd: int, do: Callable[[], None]) -> None:
        self.watched += 1
        self.readers[fd] = do

    def add_writer(self, fd: int, do: Callable[[], None]) -> None:
        self.writers[fd] = do

    def remove_reader(self, fd: int) -> bool:
        return self.readers.pop(fd, None) is not None

    def remove_writer(self, fd: int) -> bool:
        return self.writers.pop(fd, None) is not None

    def turn(self) -> bool:
        """Call one callback of each file that is ready, as a loop does. Return whether there was one."""
        readable, writable, _ = select.select(list(self.readers), list(self.writers), [], 0)
        ready = [self.readers[fd] for fd in readable] + [self.writers[fd] for fd in writable]
        for do in ready:
            do()
        return bool(ready)
