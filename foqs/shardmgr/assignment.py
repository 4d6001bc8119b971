"""Assign shards to hosts: from the current assignment and the living hosts, make a new assignment with few moves.

A shard moves only to a host that, with the shard, stays lighter than the giver was. So every such move lowers the sum
of the squared loads. It never makes the heaviest host heavier or the lightest lighter, and the moves end. Ids break
ties: every host that is elected makes the same assignment from the same facts.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace

SLACK = 0.1
"""Measured loads are noisy, and a move pauses its shard. So hosts within this fraction of the mean load of each other
are left alone. Equal loads are evened out to within one shard."""

_SCALE = 1 << 40


@dataclass(frozen=True, slots=True)
class Situation:
    """The input of a decision. `loads`: every shard that needs a host, with its load (at least 0, relative to the other
    shards). `current`: the assigned host of each shard; a host that is neither in `takers` nor in `emptied` is dead.
    `takers` may get shards. Hosts in `emptied` are alive and must lose their shards, even if they are takers.
    `under_way`: shards that balancing leaves in place. `closed`: takers that keep their shards and get new ones only if
    no other taker is left."""

    loads: Mapping[int, float]
    current: Mapping[int, str]
    takers: Collection[str]
    emptied: Collection[str] = ()
    under_way: Collection[int] = frozenset()
    closed: Collection[str] = frozenset()


def place_orphans(situation: Situation) -> dict[int, str]:
    """Assign every orphan (a shard without a living host) to a taker, and touch no other shard. Without a taker the
    orphans stay where they were. ValueError for a load that is not a number of at least 0."""
    board = _Board(situation)
    board.place(board.orphans)
    return board.hosts


def empty_hosts(situation: Situation, max_moves: int | None = None) -> dict[int, str]:
    """Move shards away from the hosts to be emptied, the heaviest first, at most `max_moves`; touch no other shard.
    ValueError as above."""
    board = _Board(situation)
    board.empty(max_moves)
    return board.hosts


def balance(situation: Situation, max_moves: int | None = None) -> dict[int, str]:
    """Place orphans, empty hosts, and even out the loads with the rest of `max_moves`.

    Without a bound, the heaviest and the lightest host end at most one shard apart, or `SLACK` of the mean load if the
    loads of the shards differ. ValueError as above.
    """
    board = _Board(situation)
    board.place(board.orphans)
    emptied = board.empty(max_moves)
    board.level(None if max_moves is None else max_moves - emptied)
    return board.hosts


def rescue(situation: Situation, able: Mapping[int, Collection[str]]) -> dict[int, str]:
    """Move each shard of `able` to the lightest of its hosts there, the heaviest shard first; touch no other. A shard
    stays if none of its hosts may take shards. ValueError as above."""
    board = _Board(situation)
    board.rescue(able)
    return board.hosts


def imbalance(hosts: Mapping[int, str], loads: Mapping[int, float], takers: Collection[str]) -> float:
    """Return the difference between the heaviest and the lightest of `takers`, in mean loads of a host; 0 is even."""
    board = _Board(Situation(loads, hosts, takers))
    total = sum(board.load.values())
    return (max(board.load.values()) - min(board.load.values())) * len(board.load) / total if total else 0.0


class _Board:
    """A decision in progress: `hosts` by shard, and the `load` of each host that may take shards, in whole units."""

    __slots__ = ("_evacuees", "_open", "_situation", "_units", "hosts", "load", "orphans")

    def __init__(self, situation: Situation) -> None:
        self._situation = situation
        self._units = _units(situation.loads)
        self.hosts = {shard: host for shard, host in situation.current.items() if shard in self._units}
        emptied = frozenset(situation.emptied)
        self.load = {host: 0 for host in situation.takers if host not in emptied}
        self._open = self.load.keys() - frozenset(situation.closed) or set(self.load)
        self.orphans: list[int] = []
        self._evacuees: list[int] = []
        for shard, units in self._units.items():
            host = self.hosts.get(shard)
            if host in self.load:
                self.load[host] += units
            elif host in emptied:
                self._evacuees.append(shard)
            else:
                self.orphans.append(shard)

    def place(self, shards: Iterable[int]) -> None:
        """Assign each shard to the host that is lightest at that moment, heavy shards first (Graham 1969, longest
        processing time)."""
        low = self._lowest()
        if not low:
            return
        heapify(low)
        for shard in sorted(shards, key=self._heaviest_first):
            load, host = low[0]
            load += self._units[shard]
            heapreplace(low, (load, host))
            self.load[host] = load
            self.hosts[shard] = host

    def empty(self, max_moves: int | None) -> int:
        """Move shards off the hosts to be emptied; return their number."""
        if not self.load:
            return 0
        going = sorted(self._evacuees, key=self._heaviest_first)[:max_moves]
        self.place(going)
        return len(going)

    def rescue(self, able: Mapping[int, Collection[str]]) -> None:
        for shard in sorted(able.keys() & self._units.keys(), key=self._heaviest_first):
            hosts, units = self._open.intersection(able[shard]), self._units[shard]
            if not hosts:
                continue
            if (giver := self.hosts.get(shard)) in self.load:
                self.load[giver] -= units
            taker = min(hosts, key=lambda host: (self.load[host], host))
            self.load[taker] += units
            self.hosts[shard] = taker

    def level(self, max_moves: int | None) -> None:
        """Move shards from the heaviest host to the lightest until no move lowers the difference."""
        least, slack = min(self._units.values(), default=0), self._slack()
        low = self._lowest()
        if not low or max(self.load.values()) - min(low)[0] <= max(least, slack):
            return
        movable = self._movable()
        mean = sum(self.load.values()) // len(self.load)
        high = [(-load, host) for host, load in self.load.items()]
        heapify(low)
        heapify(high)
        moves = 0
        while high and moves != max_moves:
            above, giver = -high[0][0], high[0][1]
            below, taker = low[0]
            if above != self.load[giver]:
                heappop(high)
            elif below != self.load[taker]:
                heappop(low)
            elif above - below <= slack:
                return
            elif (at := _best(movable[giver], min(above - mean, mean - below), above - below)) is None:
                heappop(high)  # permanently: the lightest host only gets heavier
            else:
                units, shard = self._move(movable[giver], at, taker)
                for host, load in ((giver, above - units), (taker, below + units)):
                    self.load[host] = load
                    if host in self._open:
                        heappush(low, (load, host))
                    heappush(high, (-load, host))
                at = bisect_right(movable[taker], (units, shard))
                movable[taker].insert(at, (units, shard))
                moves += 1

    def _lowest(self) -> list[tuple[int, str]]:
        return [(load, host) for host, load in self.load.items() if host in self._open]

    def _move(self, shards: list[tuple[int, int]], at: int, taker: str) -> tuple[int, int]:
        units, shard = shards.pop(at)
        self.hosts[shard] = taker
        return units, shard

    def _movable(self) -> dict[str, list[tuple[int, int]]]:
        """Return (units, shard) pairs of each host, ascending."""
        fixed = frozenset(self._situation.under_way)
        movable: dict[str, list[tuple[int, int]]] = {host: [] for host in self.load}
        for shard, host in self.hosts.items():
            if host in movable and shard not in fixed:
                movable[host].append((self._units[shard], shard))
        for shards in movable.values():
            shards.sort()
        return movable

    def _slack(self) -> int:
        units = self._units.values()
        if not self.load or min(units, default=0) == max(units, default=0):
            return 0
        return int(SLACK * sum(self.load.values()) / len(self.load))

    def _heaviest_first(self, shard: int) -> tuple[int, int]:
        return -self._units[shard], shard


def _best(shards: list[tuple[int, int]], wanted: int, gap: int) -> int | None:
    """Return the index of the heaviest of `shards` with at most `wanted` units (the fewest moves), or else of the
    lightest shard if it has less than `gap`; None if no shard does."""
    at = max(bisect_right(shards, (wanted, math.inf)) - 1, 0)
    return at if shards and shards[at][0] < gap else None


def _units(loads: Mapping[int, float]) -> dict[int, int]:
    """Convert loads to whole numbers: sums of floats depend on their order, so a shard could move back and forth for
    ever."""
    for shard, load in loads.items():
        if not 0 <= load < math.inf:
            raise ValueError(f"the load of shard {shard} is {load}")
    heaviest = max(loads.values(), default=0.0) or 1.0
    return {shard: round(load / heaviest * _SCALE) or 1 for shard, load in loads.items()}
