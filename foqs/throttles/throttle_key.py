"""One throttle key on one host: the tokens here, and the flows that wait for more of them. Pure.

A flow that finds no token is parked here. When n tokens arrive, n flows wake: the fairest of a topic first, and topics
in turn. A woken flow may have no use for its token: another key of it is dry, its items
ended, or their shard is away. So its claim on the token ends after `AWAKE_MS`, or when it is parked again, and the next
flow wakes. Invariant: while flows of wanted topics are parked, there are no more tokens than claims.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Generic, TypeVar

from foqs.quota import THROTTLE, Bounded
from foqs.quotas.allowance import Allowance
from foqs.quotas.bucket import Ask, Grant
from foqs.throttles.parking import Parking
from foqs.throttles.throttle import Throttle

F = TypeVar("F")
T = TypeVar("T")

AWAKE_MS = 100
UNANSWERED_MS = 200
LONGEST_PAUSE_MS = 50
"""Between two questions that found too few tokens. Those that accrue in it are granted in one portion."""
_LONGEST_JITTER_MS = 10
_USED_MS = 50
_REPORT_SHARE = 50  # of the time in which the bucket fills
_TOPICS = 100
"""Topics that are looked at for what their consumers want."""


class ThrottleKey(Generic[T, F]):
    """`active`: the topics whose flows are parked here, those in which a flow wakes next first. `asleep`: topics that
    no consumer asked for when tokens could be had; one flow of each is awake to find out when one asks.

    `due_ms`: when the coordinator may have tokens. `behind`: other keys with tokens here, and the flows that need those
    and are parked on this key. `mark`: the host's moment of the last question, or of the throttle if it is later."""

    __slots__ = (
        "_awake", "active", "allowance", "asleep", "behind", "bounded", "due_ms", "lacked", "mark", "returned_ms",
        "returning", "shadow_held", "slot", "throttle", "timer_ms", "used_ms",
    )  # fmt: skip

    def __init__(self, ns: str, key: str, throttle: Throttle, slot: int, allowance: Allowance, mark: int) -> None:
        """`slot`: where its coordinator is. `mark`: no token of this key was taken before this moment."""
        self.bounded: Bounded = (ns, THROTTLE + key)
        self.throttle = throttle
        self.slot = slot
        self.allowance = allowance
        self.active: dict[T, Parking[F]] = {}
        self.asleep: dict[T, Parking[F]] = {}
        self.behind: dict[ThrottleKey[T, F], list[F]] = {}
        self.due_ms = 0
        self.timer_ms = 0  # when its due time is looked at; 0 if it is not
        self.used_ms = 0
        self.mark = mark
        self.returning = False
        self.returned_ms = -1  # when tokens went back to the coordinator
        self.lacked = 0  # tokens that a shadow throttle would have needed
        self.shadow_held = 0
        self._awake: dict[F, int] = {}

    @property
    def name(self) -> str:
        return self.bounded[1][len(THROTTLE) :]

    # ------------------------------------------------------------------------------------- tokens

    def update(self, throttle: Throttle, now_ms: int, mark: int) -> None:
        """Go by another throttle. Tokens that were taken before are not given back: there may have been none."""
        self.throttle = throttle
        self.due_ms = now_ms
        self.mark = mark

    def has_token(self, flow: F, now_ms: int) -> bool:
        """Whether there is a token that no other flow has a claim on."""
        awake = self._awake
        if not awake:
            return self.allowance.held(now_ms) > 0
        return self._room(now_ms) + (flow in awake) > 0

    def spend(self, now_ms: int) -> bool:
        """Take a token, or note that a shadow throttle has none. Return False in that case."""
        self.used_ms = now_ms
        if self.allowance.spend(now_ms):
            return True
        self.shadow_held += 1
        self.lacked += 1
        return False

    def give_back(self, moment: int, now_ms: int) -> bool:
        """Take back the token of an item that was leased at that moment and not delivered, if the coordinator still
        counts it as held here. Under a shadow throttle the item may have had none."""
        return moment >= self.mark and not self.throttle.shadow and self.allowance.give_back(now_ms)

    def need(self, wanted: Callable[[T], int]) -> int:
        """Return how many more tokens the consumers of its parked flows could use, at most the burst."""
        need, most = self.lacked, self.throttle.burst
        for looked, (topic, parking) in enumerate(self.active.items()):
            if need >= most or looked == _TOPICS:
                break
            need += min(parking.items, wanted(topic))
        return min(need, most)

    def ask(self, need: int, now_ms: int, mark: int, *, beat: bool = False) -> Ask | None:
        """Return the question to send now, None if there is nothing to ask, report or return. On a `beat` the tokens
        that recent use will need stay here. `mark` is a new moment: leases before it return no token any more."""
        allowance, returning = self.allowance, self.returning and not need
        self.returning = False
        held = allowance.held(now_ms)
        if need <= held and not (held and (beat or returning)) and not allowance.used_up():
            return None
        self.mark, self.lacked = mark, 0
        spare = returning or (beat and not self._awake)
        asked = allowance.ask(need, now_ms, ahead=beat, spare=spare)
        if asked.back:  # the coordinator has these again: a flow that wants one now asks at once
            self.due_ms = self.returned_ms = now_ms
        return asked

    def answered(self, ask: Ask, grant: Grant | None, now_ms: int, jitter: float) -> None:
        """`grant` is None if there is no answer. `jitter`, from 0 to 1, keeps the hosts that wait for the same token
        from asking in the same order each time."""
        if not self.allowance.waits_for(ask):
            return
        self.allowance.answered(ask.number, grant, now_ms)
        if grant is None:
            self.due_ms = now_ms + UNANSWERED_MS
        elif grant.granted < ask.wanted:
            pause_ms = max(1, grant.retry_after_ms, min(LONGEST_PAUSE_MS, self._fill_ms // 2))
            self.due_ms = now_ms + pause_ms + int(jitter * min(_LONGEST_JITTER_MS, pause_ms // 20))

    def next_ms(self, now_ms: int) -> int | None:
        """Return when there is something to ask, None if there is nothing.

        The last token is reported as spent before the time in which the coordinator could have made another one."""
        at_ms = max(now_ms, self.due_ms) if self.active or self.lacked else None
        if self.allowance.used_up():
            report_ms = self.used_ms + min(LONGEST_PAUSE_MS, self._fill_ms // _REPORT_SHARE)
            at_ms = report_ms if at_ms is None else min(at_ms, report_ms)
        return at_ms

    @property
    def _fill_ms(self) -> int:
        return int(1_000 * self.throttle.burst / self.throttle.per_second)

    def unneeded(self, now_ms: int) -> bool:
        """Whether its tokens wait for a token of another key alone. Tokens go back once a millisecond: two flows on the
        coordinator's own host could return each other's, and ask for them at once, without end."""
        idle = self.allowance.balance > 0 and not self.active and now_ms - self.used_ms >= _USED_MS
        return idle and now_ms > self.returned_ms

    # ------------------------------------------------------------------------------------- flows

    def park(self, topic: T, flow: F, start: float, items: int, now_ms: int) -> None:
        """Park a flow that found no token. Its topic is wanted now."""
        self._awake.pop(flow, None)
        parking = self.active.get(topic)
        if parking is None:
            parking = self.asleep.pop(topic, None) or Parking()
            self.active[topic] = parking
        parking.add(flow, start, items, now_ms)

    def remove(self, topic: T, flow: F) -> None:
        """Forget a parked or woken flow."""
        self._awake.pop(flow, None)
        for topics in (self.active, self.asleep):
            parking = topics.get(topic)
            if parking is not None and parking.remove(flow) and not parking:
                del topics[topic]

    def holds_up(self, flow: F, keys: Sequence[ThrottleKey[T, F]], now_ms: int) -> list[ThrottleKey[T, F]]:
        """The flow, which needs tokens of all `keys`, is parked on this one. Return the later ones that it had a claim
        on: it gives these up, or a flow that waits for it could have a claim on this key, and both would wait."""
        given_up, later = [], False
        for other in keys:
            if other is self:
                later = True
            elif other.allowance.held(now_ms):
                self.behind.setdefault(other, []).append(flow)
                if later and other._awake.pop(flow, None) is not None:
                    given_up.append(other)
        return given_up

    def settled(self, flow: F) -> None:
        """A woken flow took its token, or has no use for it."""
        self._awake.pop(flow, None)

    def wake(self, demanded: Callable[[T], bool], lives: Callable[[F], bool], now_ms: int) -> list[tuple[T, F]]:
        """Return the flows that wake for the tokens which are here."""
        if not self.allowance.balance:
            return []
        room = self._room(now_ms)
        woken: list[tuple[T, F]] = []
        while room > 0 and self.active:
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

    def doze(self, demanded: Callable[[T], bool], lives: Callable[[F], bool]) -> list[tuple[T, F]]:
        """Put topics that no consumer wants to sleep, some at a time. Return a flow of each, which wakes without a
        token: when a consumer asks for it, it is parked again, and tokens are asked for."""
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
        """Number of woken flows that have not used their token yet."""
        return len(self._awake)

    def parked(self) -> Iterator[tuple[T, Parking[F]]]:
        yield from self.active.items()
        yield from self.asleep.items()

    @property
    def unused(self) -> bool:
        """Whether it can be forgotten."""
        allowance = self.allowance
        idle = allowance.asked is None and not allowance.balance
        return idle and not (self.active or self.asleep or self.timer_ms or self.lacked)

    def _room(self, now_ms: int) -> int:
        awake = self._awake
        while awake:
            flow, at_ms = next(iter(awake.items()))
            if now_ms - at_ms < AWAKE_MS:
                break
            del awake[flow]
        return self.allowance.held(now_ms) - len(awake)

    def __repr__(self) -> str:
        return f"ThrottleKey({self.name} {self.allowance}, {self.awake} awake)"


def _next(parking: Parking[F], lives: Callable[[F], bool]) -> F | None:
    """Remove the fairest flow that has items, and forget those before it."""
    while (flow := parking.pop()) is not None:
        if lives(flow):
            return flow
    return None
