"""A gate: the units that flows wait for, tokens of a throttle key or slots of one in a shard, with the flows. Pure.

A flow that finds no unit is parked here. When n of them arrive, n flows wake: the fairest of a topic first, and topics
in turn. A woken flow may have no use for its unit: another key of it is dry, its items ended, or their shard is away.
So its claim on the unit ends after `AWAKE_MS`, or when it is parked again, and the next flow wakes. Invariant: while
flows of wanted topics are parked, there are no more units than claims.

A flow that needs units of several keys would lose its claims on the first ones each time it waits for a later one. So
one claim a gate has no such end: the claim of its keeper, the flow that has waited longest at a later gate. All flows
wait at their gates in one order, so no keeper waits for a unit of a flow that waits for the keeper. The exception has
an end: a slot is kept for a token, and a token for a slot for one interval of its key. At the later gate every second
unit is for flows that keep one, so that they keep it for a short time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import count, islice
from typing import Any, Generic, TypeVar

from foqs.bounds import THROTTLE, Bounded
from foqs.policies.entries import Throttle

F = TypeVar("F")
"""A flow."""
T = TypeVar("T")
"""A topic."""

AWAKE_MS = 100
"""The claim of a woken flow ends after this time."""
UNANSWERED_MS = 200
"""The pause after a question to a coordinator that did not answer."""
AT_ONCE = 1_000
"""One slice of the event loop looks at, or asks about, at most this many gates: more would stall it."""
_TOPICS = 100
"""Topics whose consumers are asked for their demand."""
_STALE = 64


class Parking(Generic[F]):
    """The parked flows of one topic in the order of their tenants' virtual starts, and then of their waiting time, here
    and at other gates. `items`: the number of their items that consumers wanted. `scout`: the flow that woke without a
    unit while no consumer wants the topic."""

    __slots__ = ("_heap", "_parked", "_seq", "items", "scout")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, F]] = []  # with flows that left
        self._parked: dict[F, tuple[int, int, int]] = {}  # its entry's number, its items, since when
        self._seq = 0
        self.items = 0
        self.scout: F | None = None

    def add(self, flow: F, start: float, since_ms: int, items: int, now_ms: int) -> None:
        """Park a flow that is not here. `start` is its tenant's. `since_ms`: when it was first parked at some gate."""
        self._seq += 1
        self._parked[flow] = (self._seq, items, now_ms)
        self.items += items
        heappush(self._heap, (start, since_ms, self._seq, flow))

    def moved(self, flow: F, start: float, since_ms: int) -> None:
        """The tenant of the flow has another virtual start. `since_ms`: as for `add`."""
        entry = self._parked.get(flow)
        if entry is None:
            return
        self._seq += 1
        self._parked[flow] = (self._seq, *entry[1:])
        heappush(self._heap, (start, since_ms, self._seq, flow))
        self._drop_stale()

    def remove(self, flow: F) -> bool:
        """Remove the flow; return whether it was here."""
        entry = self._parked.pop(flow, None)
        if entry is None:
            return False
        self.items -= entry[1]
        self._drop_stale()
        return True

    def _drop_stale(self) -> None:
        if len(self._heap) > 2 * len(self._parked) + _STALE:
            self._heap = [one for one in self._heap if self._parked.get(one[3], (0,))[0] == one[2]]
            heapify(self._heap)

    def pop(self) -> F | None:
        """Remove the fairest flow and return it; None if there is none."""
        while self._heap:
            _, _, seq, flow = heappop(self._heap)
            entry = self._parked.get(flow)
            if entry is not None and entry[0] == seq:
                del self._parked[flow]
                self.items -= entry[1]
                return flow
        return None

    def __len__(self) -> int:
        return len(self._parked)

    def __iter__(self) -> Iterator[F]:
        return iter(list(self._parked))

    def longest(self, count: int) -> list[F]:
        """Return the `count` flows that have been parked for the longest time."""
        return list(islice(self._parked, count))

    def since_ms(self) -> int | None:
        """Return the time at which the oldest parked flow was parked."""
        return next((entry[2] for entry in self._parked.values()), None)

    def __repr__(self) -> str:
        return f"Parking({len(self._parked)} flows, {self.items} items)"


class Gate(Generic[T, F]):
    """`active`: the topics whose flows are parked here, in the order in which they wake. `asleep`: topics that no
    consumer asked for when there were units; one flow of each is awake to notice when a consumer asks.

    `due_ms`: the coordinator may have units then. `unanswered`: questions in a row without an answer. `behind`:
    throttle keys with tokens here, and the flows parked on this gate that need these. `closed`: another gate took its
    place, or none. As the coordinator knows one, a report of this gate would make the units of the other seem spent."""

    __slots__ = (
        "_awake", "_keeper", "_keeping", "_others_turn", "active", "asleep", "behind", "bounded", "closed", "due_ms",
        "hash_slot", "throttle", "timer_ms", "unanswered",
    )  # fmt: skip

    def __init__(self, ns: str, key: str, throttle: Throttle, hash_slot: int) -> None:
        """`hash_slot`: names its coordinator."""
        self.bounded: Bounded = (ns, THROTTLE + key)
        self.throttle = throttle
        self.hash_slot = hash_slot
        self.closed = False
        self.active: dict[T, Parking[F]] = {}
        self.asleep: dict[T, Parking[F]] = {}
        self.behind: dict[Any, list[F]] = {}
        self.due_ms = 0
        self.unanswered = 0
        self.timer_ms = 0  # of its timer in the agenda; 0 without one
        self._awake: dict[F, int] = {}
        self._keeper: tuple[F, T, int, int] | None = None  # the flow, its topic, since when it waits and keeps
        self._keeping: dict[F, T] = {}  # parked here, and keeper of other gates; some entries are out of date
        self._others_turn = False

    @property
    def name(self) -> str:
        return self.bounded[1][len(THROTTLE) :]

    # ------------------------------------------------------------------------------------- units

    @property
    def asking(self) -> bool:
        """Return True if a question to the coordinator is open."""
        raise NotImplementedError

    @property
    def answers_soon(self) -> bool:
        """Return True if an answer of the coordinator that may bring units is some milliseconds away."""
        return self.asking

    def here(self, now_ms: int) -> int:
        """Return the number of units that are here."""
        raise NotImplementedError

    def next_ms(self, now_ms: int) -> int | None:
        """Return the time of the next question to the coordinator, or None."""
        raise NotImplementedError

    def has_room(self, flow: F, now_ms: int) -> bool:
        """Return True if there is a unit that no other flow has a claim on."""
        if not self._awake and self._keeper is None:
            return self.here(now_ms) > 0
        return self.room(now_ms) + self.claims(flow) > 0

    def wanted_of(self, wanted: Callable[[T], int], most: int, begin: int = 0) -> int:
        """Return `begin` plus the units that consumers of its parked flows could use, at most `most`."""
        need = begin
        for looked, (topic, parking) in enumerate(self.active.items()):
            if need >= most or looked == _TOPICS:
                break
            need += min(parking.items, wanted(topic))
        return min(need, most)

    # ------------------------------------------------------------------------------------- flows

    def park(
        self, topic: T, flow: F, start: float, since_ms: int, items: int, now_ms: int, *, keeping: bool = False
    ) -> None:
        """Park a flow that found no unit, and was first parked at some gate at `since_ms`. Its topic is wanted now.
        `keeping`: the flow is the keeper of other gates."""
        self.settled(flow)
        if keeping:
            self._keeping[flow] = topic
        parking = self.active.get(topic)
        if parking is None:
            parking = self.asleep.pop(topic, None) or Parking()
            self.active[topic] = parking
        parking.add(flow, start, since_ms, items, now_ms)

    def moved(self, topic: T, flow: F, start: float, since_ms: int) -> None:
        """The tenant of a flow that is parked here has another virtual start."""
        parking = self.active.get(topic) or self.asleep.get(topic)
        if parking is not None:
            parking.moved(flow, start, since_ms)

    def remove(self, topic: T, flow: F) -> None:
        """Forget a parked or woken flow."""
        self.settled(flow)
        for topics in (self.active, self.asleep):
            parking = topics.get(topic)
            if parking is not None and parking.remove(flow) and not parking:
                del topics[topic]

    def holds_up(self, flow: F, keys: Sequence[Any], now_ms: int) -> list[Any]:
        """The flow, which needs tokens of all `keys`, is parked on this gate. Return the later ones that it had a claim
        on: it gives these up, or a flow that waits for it could have a claim on this key, and both would wait."""
        given_up, later = [], False
        for other in keys:
            if other is self:
                later = True
            elif other.here(now_ms) and not (other.keeps(flow) and not later):
                self.behind.setdefault(other, []).append(flow)
                if later and other.claims(flow):
                    other.settled(flow)
                    given_up.append(other)
        return given_up

    def keep(self, topic: T, flow: F, since_ms: int, now_ms: int) -> bool:
        """The flow waits at a later gate, since `since_ms` at one or another. If there is a unit for it here, and no
        keeper that has waited longer, it becomes the keeper. Return True if it replaced one."""
        keeper = self._keeper
        if keeper is not None and (keeper[0] is flow or keeper[2] <= since_ms):
            return False
        if not self.has_room(flow, now_ms):
            return False
        self._awake.pop(flow, None)
        self._keeper = (flow, topic, since_ms, now_ms)
        return keeper is not None

    def keeps(self, flow: F) -> bool:
        """Return True if the flow is the keeper."""
        return self._keeper is not None and self._keeper[0] is flow

    def woken(self, flow: F, now_ms: int) -> None:
        """The flow waits at the later gate no more. If it is the keeper, its claim ends like that of any woken flow."""
        if self.keeps(flow):
            self._keeper = None
            self._awake[flow] = now_ms

    def end_keep(self, waits: Callable[[Any, T, F, int], bool]) -> None:
        """Forget the keeper unless it still waits at another gate, for consumers that want its items."""
        if self._keeper is not None:
            flow, topic, _, kept_ms = self._keeper
            if not waits(self, topic, flow, kept_ms):
                self._keeper = None

    def settled(self, flow: F) -> None:
        """A flow took the unit that it had a claim on, or has no use for it."""
        self._awake.pop(flow, None)
        self._keeping.pop(flow, None)
        if self.keeps(flow):
            self._keeper = None

    def claims(self, flow: F) -> bool:
        """Return True if the flow has a claim on a unit."""
        return flow in self._awake or self.keeps(flow)

    def wake(self, demanded: Callable[[T], bool], lives: Callable[[F], bool], now_ms: int) -> list[tuple[T, F]]:
        """Return the flows that wake for the units which are here."""
        if not self.here(now_ms):
            return []
        room = self.room(now_ms)
        woken: list[tuple[T, F]] = []
        while room > 0 and self.active:
            keeping = None if self._others_turn else self._next_keeping(demanded, lives)
            self._others_turn = keeping is not None
            if keeping is not None:
                self._awake[keeping[1]] = now_ms
                woken.append(keeping)
                room -= 1
            if keeping is not None or not self.active:
                continue
            topic, parking = next(iter(self.active.items()))
            del self.active[topic]
            if not demanded(topic):
                self.asleep[topic] = parking
                woken += self.scout(topic, lives)
                continue
            flow = _next(parking, lives)
            if parking:
                self.active[topic] = parking  # behind the other topics
            if flow is not None:
                self._awake[flow] = now_ms
                woken.append((topic, flow))
                room -= 1
        return woken

    def _next_keeping(self, demanded: Callable[[T], bool], lives: Callable[[F], bool]) -> tuple[T, F] | None:
        """Remove the first flow that is the keeper of other gates, of a topic that consumers want."""
        for flow, topic in list(self._keeping.items()):
            del self._keeping[flow]
            parking = self.active.get(topic)
            if parking is None or not demanded(topic) or not parking.remove(flow):
                continue
            if not parking:
                del self.active[topic]
            if lives(flow):
                return topic, flow
        return None

    def doze(self, demanded: Callable[[T], bool], lives: Callable[[F], bool]) -> list[tuple[T, F]]:
        """Put topics that no consumer wants to sleep, some at a time. Return a flow of each, which wakes without a
        unit: when a consumer asks for it, it is parked again, and units are asked for."""
        woken: list[tuple[T, F]] = []
        for topic in [topic for topic in islice(self.active, _TOPICS) if not demanded(topic)]:
            self.asleep[topic] = self.active.pop(topic)
            woken += self.scout(topic, lives)
        return woken

    def scout(self, topic: T, lives: Callable[[F], bool]) -> list[tuple[T, F]]:
        """Wake a flow of a topic that is asleep, if there is one."""
        parking = self.asleep[topic]
        flow = parking.scout = _next(parking, lives)
        if not parking:
            del self.asleep[topic]
        return [] if flow is None else [(topic, flow)]

    def claims_end_ms(self, now_ms: int) -> int:
        """Return when the oldest claim of a woken flow ends, or would end if it began now."""
        return next(iter(self._awake.values()), now_ms) + AWAKE_MS

    @property
    def awake(self) -> int:
        """Number of claims on units."""
        return len(self._awake) + self.kept

    @property
    def kept(self) -> int:
        """Number of units that a keeper has: 0 or 1."""
        return self._keeper is not None

    def parked(self) -> Iterator[tuple[T, Parking[F]]]:
        yield from self.active.items()
        yield from self.asleep.items()

    def room(self, now_ms: int) -> int:
        """Return the number of units that no flow has a claim on; it is negative if claims are more than the units."""
        self.end_claims(now_ms)
        return self.here(now_ms) - self.awake

    def end_claims(self, now_ms: int) -> None:
        """Forget the claims of flows that did not use them in time."""
        awake = self._awake
        while awake:
            flow, at_ms = next(iter(awake.items()))
            if now_ms - at_ms < AWAKE_MS:
                break
            del awake[flow]


def _next(parking: Parking[F], lives: Callable[[F], bool]) -> F | None:
    """Remove the fairest flow that has items, and forget those before it."""
    while (flow := parking.pop()) is not None:
        if lives(flow):
            return flow
    return None


G = TypeVar("G", bound=Gate[Any, Any])


class Agenda(Generic[G]):
    """The gates of a host to look at, and to ask about at their coordinators, some at a time. `turn_wanted`: take `due`
    and `fresh` soon. Times are monotonic."""

    __slots__ = ("_fresh", "_seq", "_timers", "_to_ask", "_turn_wanted", "_unsettled")

    def __init__(self, turn_wanted: Callable[[], None]) -> None:
        self._turn_wanted = turn_wanted
        self._to_ask: set[G] = set()  # until `asked`
        self._fresh: deque[G] = deque()  # new in `_to_ask`; some gates more than once
        self._unsettled: dict[G, None] = {}
        self._timers: list[tuple[int, int, G]] = []
        self._seq = count(1)

    def __contains__(self, gate: G) -> bool:
        """Return True if the gate's coordinator is asked soon."""
        return gate in self._to_ask

    def ask(self, gate: G) -> None:
        """Ask the gate's coordinator soon."""
        if gate not in self._to_ask:
            self._to_ask.add(gate)
            self._fresh.append(gate)
            self._turn_wanted()

    def asked(self, gate: G) -> None:
        """Note that the coordinator is asked now, or that there is no question."""
        self._to_ask.discard(gate)

    def settle_soon(self, gate: G) -> None:
        """Look at the gate in the next loop slice."""
        self._unsettled[gate] = None
        self._turn_wanted()

    def settle_at(self, gate: G, due_ms: int) -> None:
        """Look at the gate then, or earlier."""
        if not gate.timer_ms or due_ms < gate.timer_ms:
            gate.timer_ms = due_ms
            heappush(self._timers, (due_ms, next(self._seq), gate))
            if self._timers[0][2] is gate:
                self._turn_wanted()

    def schedule(self, gate: G, at_ms: int) -> None:
        """Ask when there is something to ask for, unless a question is open."""
        if not gate.asking and gate not in self._to_ask:
            due_ms = gate.next_ms(at_ms)
            if due_ms is not None:
                self.settle_at(gate, due_ms) if due_ms > at_ms else self.ask(gate)

    def due(self, at_ms: int) -> list[G]:
        """Take gates to look at now."""
        found = list(islice(self._unsettled, AT_ONCE))
        for gate in found:
            del self._unsettled[gate]
        timers = self._timers
        while timers and timers[0][0] <= at_ms and len(found) < AT_ONCE:
            due_ms, _, gate = heappop(timers)
            if gate.timer_ms == due_ms:
                gate.timer_ms = 0
                found.append(gate)
        if self._unsettled:
            self._turn_wanted()
        return found

    def next_ms(self) -> int | None:
        """Return when gates are due by their time; it may be past. None if there is none."""
        return self._timers[0][0] if self._timers else None

    def fresh(self) -> list[G]:
        """Take gates whose coordinators are asked now."""
        found = [self._fresh.popleft() for _ in range(min(AT_ONCE, len(self._fresh)))]
        if self._fresh:
            self._turn_wanted()
        return found

    def __repr__(self) -> str:
        return f"Agenda({len(self._to_ask)} to ask, {len(self._unsettled)} to settle, {len(self._timers)} timers)"
