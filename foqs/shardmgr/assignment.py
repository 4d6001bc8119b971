"""Which host is to serve which shard: from what is and who lives, a new assignment with few moves.

A shard is moved only from a host to one that stays lighter than the giver was, even with the shard. So every such move
makes the sum of the squared loads smaller, never the heaviest host heavier nor the lightest lighter, and there is an
end to them. Ties are broken by ids: the same facts give the same assignment on whichever host was elected.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace

SLACK = 0.1
"""Loads that differ are noisy, and a move costs its shard a pause: hosts that are within this part of the mean load
of each other are left alone. Equal loads are evened out to within one shard."""

_SCALE = 1 << 40


@dataclass(frozen=True, slots=True)
class Situation:
    """`loads`: every shard that is to be served, with its part of the load (at least 0, relative to the others).
    `current`: who is to serve each shard so far; a host that is neither in `takers` nor in `emptied` is not alive.
    `takers` may be given shards; those of `emptied` live too, and are to be rid of theirs (also when they are takers).
    `under_way`: shards that balancing leaves where they are. `closed`: takers that keep what they have and are given
    nothing, unless no other taker is left."""

    loads: Mapping[int, float]
    current: Mapping[int, str]
    takers: Collection[str]
    emptied: Collection[str] = ()
    under_way: Collection[int] = frozenset()
    closed: Collection[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Decision:
    """`hosts` is the new assignment. `placed`: shards that no living host had, and now one has. `moved`: shards that go
    from one living host to another. Both ascending."""

    hosts: dict[int, str]
    placed: tuple[int, ...]
    moved: tuple[int, ...]


def place_orphans(situation: Situation) -> Decision:
    """Emergency: gives every shard that has no living host to one that may take shards, and touches no other. With no
    such host they stay where they were. ValueError for a load that is no number from 0."""
    board = _Board(situation)
    board.place(board.orphans)
    return board.decision()


def empty_hosts(situation: Situation, max_moves: int | None = None) -> Decision:
    """Moves the shards away from the hosts to be emptied, the heaviest first, at most `max_moves`; touches no other.
    ValueError as above."""
    board = _Board(situation)
    board.empty(max_moves)
    return board.decision()


def balance(situation: Situation, max_moves: int | None = None) -> Decision:
    """Places orphans, empties hosts, and evens out the loads with what is then left of `max_moves`.

    Without a bound, the heaviest and the lightest host are at most one shard apart in the end, or `SLACK` of the mean
    load when the loads of the shards differ. ValueError as above."""
    board = _Board(situation)
    board.place(board.orphans)
    emptied = board.empty(max_moves)
    board.level(None if max_moves is None else max_moves - emptied)
    return board.decision()


def rescue(situation: Situation, able: Mapping[int, Collection[str]]) -> Decision:
    """Moves each shard of `able` to the lightest of its hosts there, the heaviest shard first; touches no other. A
    shard none of whose hosts may take shards stays. ValueError as above."""
    board = _Board(situation)
    board.rescue(able)
    return board.decision()


def imbalance(hosts: Mapping[int, str], loads: Mapping[int, float], takers: Collection[str]) -> float:
    """How far the heaviest and the lightest of `takers` are apart, in mean loads of a host; 0 is even."""
    board = _Board(Situation(loads, hosts, takers))
    total = sum(board.load.values())
    return (max(board.load.values()) - min(board.load.values())) * len(board.load) / total if total else 0.0


class _Board:
    """A decision in the making: `load` of each host that may take shards, in whole units."""

    __slots__ = ("_evacuees", "_hosts", "_open", "_situation", "_units", "load", "orphans")

    def __init__(self, situation: Situation) -> None:
        self._situation = situation
        self._units = _units(situation.loads)
        self._hosts = {shard: host for shard, host in situation.current.items() if shard in self._units}
        emptied = frozenset(situation.emptied)
        self.load = {host: 0 for host in situation.takers if host not in emptied}
        self._open = self.load.keys() - frozenset(situation.closed) or set(self.load)
        self.orphans: list[int] = []
        self._evacuees: list[int] = []
        for shard, units in self._units.items():
            host = self._hosts.get(shard)
            if host in self.load:
                self.load[host] += units
            elif host in emptied:
                self._evacuees.append(shard)
            else:
                self.orphans.append(shard)

    def place(self, shards: Iterable[int]) -> None:
        """Each goes to the host that is lightest then, heavy shards first (Graham 1969, longest processing time)."""
        low = self._lowest()
        if not low:
            return
        heapify(low)
        for shard in sorted(shards, key=self._heaviest_first):
            load, host = low[0]
            load += self._units[shard]
            heapreplace(low, (load, host))
            self.load[host] = load
            self._hosts[shard] = host

    def empty(self, max_moves: int | None) -> int:
        """Returns how many were moved."""
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
            if (giver := self._hosts.get(shard)) in self.load:
                self.load[giver] -= units
            taker = min(hosts, key=lambda host: (self.load[host], host))
            self.load[taker] += units
            self._hosts[shard] = taker

    def level(self, max_moves: int | None) -> None:
        """Moves from the heaviest host to the lightest until nothing is left to gain."""
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
                heappop(high)  # for good: the lightest host only gets heavier
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

    def decision(self) -> Decision:
        before, living = self._situation.current, {*self._situation.takers, *self._situation.emptied}
        changed = sorted(shard for shard, host in self._hosts.items() if before.get(shard) != host)
        placed = tuple(shard for shard in changed if before.get(shard) not in living)
        moved = tuple(shard for shard in changed if before.get(shard) in living)
        return Decision(self._hosts, placed, moved)

    def _move(self, shards: list[tuple[int, int]], at: int, taker: str) -> tuple[int, int]:
        units, shard = shards.pop(at)
        self._hosts[shard] = taker
        return units, shard

    def _movable(self) -> dict[str, list[tuple[int, int]]]:
        """(units, shard) of each host, ascending."""
        fixed = frozenset(self._situation.under_way)
        movable: dict[str, list[tuple[int, int]]] = {host: [] for host in self.load}
        for shard, host in self._hosts.items():
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
    """Where the heaviest of `shards` is that weighs at most `wanted` (the fewest moves), or else the lightest, if it
    weighs less than `gap`; None if no shard does."""
    at = max(bisect_right(shards, (wanted, math.inf)) - 1, 0)
    return at if shards and shards[at][0] < gap else None


def _units(loads: Mapping[int, float]) -> dict[int, int]:
    """Whole numbers: sums of floats depend on their order, and a shard could be moved to and fro for ever."""
    for shard, load in loads.items():
        if not 0 <= load < math.inf:
            raise ValueError(f"the load of shard {shard} is {load}")
    heaviest = max(loads.values(), default=0.0) or 1.0
    return {shard: round(load / heaviest * _SCALE) or 1 for shard, load in loads.items()}
