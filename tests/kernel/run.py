"""The kernel of the simulations: virtual time, and one run of a seed with its trace.

A cast of the kernel brings hosts, databases, clients and checks: `tests.sim` the shards of hosts that fail,
`tests.sim_peers` requests between hosts and their coordinators, `tests.sim_cluster` a cluster with its ZooKeeper.
A run uses no real time, no hashes of strings and no order of a set, so a seed gives the same run on every machine.
"""

from __future__ import annotations

import random
import re
from collections import Counter, deque
from collections.abc import Callable
from hashlib import sha256
from heapq import heappop, heappush
from typing import Any, Self


class PromiseBroken(AssertionError):
    """A host broke a promise."""


class Stuck(AssertionError):
    """An event that must follow does not."""


class Clock:
    """Virtual time in ms. Callbacks run by their times, at one time in the order of their scheduling.

    `time` begins at 0. `now_ms` is the time of the machines' clocks, which `set_forward` changes.
    """

    most_events = 200_000

    def __init__(self, start_ms: int = 0) -> None:
        self.time: Any = 0  # a float where a delay is a float
        self.now_ms: Any = start_ms
        self.events = 0
        self._ahead_ms = start_ms
        self._heap: list[tuple[float, int, Callable[[], object]]] = []
        self._pushed = 0

    def soon(self, delay_ms: float, do: Callable[[], object]) -> None:
        self._pushed += 1
        heappush(self._heap, (self.time + delay_ms, self._pushed, do))

    def until(self, time: float, done: Callable[[], bool] | None = None) -> bool:
        """Run the callbacks up to `time`, or until `done` holds. Return True if it holds."""
        heap = self._heap
        while done is None or not done():
            if not heap or heap[0][0] > time:
                self.time = max(self.time, time)
                self.now_ms = self._ahead_ms + self.time
                return done is not None and done()
            self.time, _, do = heappop(heap)
            self.now_ms = self._ahead_ms + self.time
            do()
            self.events += 1
            self.after_event()
            if self.events > self.most_events:
                raise Stuck("the run does not end")
        return True

    def after_event(self) -> None:
        """Look at the state after each event, in a cast that has such checks."""

    def set_forward(self, by_ms: int) -> None:
        """Set the machines' clocks forward, or back."""
        self._ahead_ms += by_ms
        self.now_ms += by_ms


class Run(Clock):
    """One run of a seed. `trouble` names its kind, `counts` what its checks have seen. No fault follows `healing`."""

    last_lines = 60

    def __init__(self, seed: int, trouble: str = "", start_ms: int = 0) -> None:
        super().__init__(start_ms)
        self.seed = seed
        self.trouble = trouble
        self.rng = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.healing = False
        self._trace: deque[tuple[float, tuple[object, ...]]] = deque(maxlen=2_000)

    def run(self) -> Self:
        """Play the whole run. A failure is raised with the seed and the last events."""
        try:
            self.play()
        except Exception as error:
            replay = f"seed {self.seed} at {self.time:.0f} ms; replay: FOQS_SIM_SEED={self.seed}"
            error.add_note(f"{replay}\n{self.trace(str(error))}")
            raise
        return self

    def play(self) -> None:
        raise NotImplementedError

    def repeat(self, every_ms: int, do: Callable[[], object]) -> None:
        """Call `do` about every `every_ms`, until the run heals; never, if that is 0."""

        def again() -> None:
            if not self.healing:
                do()
                self.repeat(every_ms, do)

        if every_ms:
            self.soon(self.rng.randint(1, 2 * every_ms), again)

    def wait(self, most_ms: float, done: Callable[[], bool], otherwise: Callable[[], str]) -> None:
        """Go on until `done` holds, which must be within `most_ms`."""
        if not self.until(self.time + most_ms, done):
            raise Stuck(f"after {most_ms:.0f} ms: {otherwise()}")

    # ------------------------------------------------------------------------------------- the trace

    def note(self, *what: object) -> None:
        self._trace.append((self.time, what))

    def lines(self) -> list[str]:
        return [f"{at:>9.0f} " + " ".join(map(_shown, what)) for at, what in self._trace]

    def trace(self, message: str = "") -> str:
        """Return the last events. If `message` names an item, return those about it."""
        about = re.search(r"\b\d{15,}\b", message)
        if about is None:
            return "\n".join(line[:400] for line in self.lines()[-self.last_lines :])
        return "\n".join(line[:2000] for line in self.lines() if about[0] in line)

    def digest(self) -> str:
        """Return a digest of the last events and of all that was counted."""
        parts = [*self.lines(), str(self.events), str(sorted(self.counts.items())), str(self.rng.getstate())]
        return sha256("\n".join(parts).encode()).hexdigest()


def _shown(part: object) -> str:
    """Return a part of a note without empty fields of batches, and without addresses, which differ in each run."""
    text = re.sub(r" at 0x[0-9a-f]+>", ">", str(part))
    return re.sub(r"\b\w+=(\[\]|\{\}|set\(\)|None|False|0|'')(, )?", "", text)
