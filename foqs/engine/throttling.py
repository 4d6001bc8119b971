"""Throttles on one host: which flows may be delivered, which are parked, and which throttle keys need tokens.

`foqs.peers.token_lender` asks the coordinators for tokens. A flow is delivered if there is a token of each of its keys;
else it takes none, and is parked on the first key, in the order of their names, that has none. The order is the same on
all hosts, so no two flows wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count, islice
from typing import Any, NamedTuple

from foqs.dedup import digest_of, slot_of
from foqs.engine.pending import DequeueCall, Hint
from foqs.fairness.flow import Flow
from foqs.fairness.keys import TopicKey
from foqs.item import Item
from foqs.policies.layers import Policies
from foqs.quota import THROTTLE, Bounded
from foqs.quotas.allowance import Allowance, Lost
from foqs.quotas.bucket import Ask, Grant
from foqs.throttles.agenda import Agenda
from foqs.throttles.throttle_key import ThrottleKey

Parked = Flow[Any]
Key = ThrottleKey[TopicKey, Parked]

_RECENT_MS = 2_000
"""A topic is wanted for so long after a dequeue of it found a flow without tokens."""
_SLICE = 500
_CALLS = 100
"""Consumers of a topic that are looked at for how many items they want."""
_KEYS = 100
"""Keys of a topic that are looked at for an empty reply."""


class Rules(NamedTuple):
    """The throttles of a flow, when `Throttling.changes` had this value. `keys` are in the order of their names."""

    changes: int
    keys: tuple[Key, ...]
    owner: Throttling


class Throttling:
    """`waiting`: the consumers that wait. `woken(topic)`: flows of the topic may be delivered. `tokens_wanted`: call
    `turn` soon. `long_work` is done in parts. `monotonic_ms` never goes back, as the host's clock may.

    `moment` counts questions and changes of throttles. A lease keeps the moment at which it was given: its tokens may
    return until the next question for them, or the next change. No clock says so, as it may be set in between."""

    def __init__(
        self,
        policies: Policies,
        waiting: Mapping[TopicKey, Sequence[DequeueCall]],
        woken: Callable[[TopicKey], None],
        long_work: Callable[[Iterator[None]], None],
        random: Callable[[], float],
        tokens_wanted: Callable[[], None],
        monotonic_ms: Callable[[], int],
    ) -> None:
        self._policies = policies
        self._waiting = waiting
        self._woken = woken
        self._long_work = long_work
        self._random = random
        self._tokens_wanted = tokens_wanted
        self.monotonic_ms = monotonic_ms
        self.changes = 0
        self.moment = 0
        self._changed_at = 0
        self.keys: dict[Bounded, Key] = {}
        self.agenda: Agenda[TopicKey, Parked] = Agenda(tokens_wanted)
        self._beating: set[Key] = set()
        self._holding: dict[Key, None] = {}  # keys with tokens
        self._reporting = False
        self.lost = Lost()
        self._numbers = count(1)
        self._topics: dict[TopicKey, dict[Key, None]] = {}  # where flows of the topic are parked, or were
        self._lacked: dict[TopicKey, tuple[int, int]] = {}  # when a dequeue found a dry flow, and the items it wanted

    # ------------------------------------------------------------------------------------- dequeues

    def take(self, flow: Parked) -> Key | None:
        """Take one token of each of the flow's keys for an item that is delivered next. If a key has none, take nothing
        and return that key: `park` the flow."""
        rules = flow.rules
        if rules is None or rules.changes != self.changes:
            rules = self._resolve(flow)
        if not rules.keys:
            return None
        at_ms = self.monotonic_ms()
        for key in rules.keys:
            if not (key.has_token(flow, at_ms) or key.throttle.shadow):
                return key  # type: ignore[no-any-return]
        for key in rules.keys:
            key.settled(flow)
            if not key.spend(at_ms) or key.allowance.used_up():
                self.agenda.schedule(key, at_ms)
        return None

    def park(self, flow: Parked, key: Key, wanted: int) -> bool:
        """Park the flow on a key that `take` returned, for a consumer that wants so many more items. Return whether the
        coordinator is asked at once: the consumer may wait for that answer."""
        at_ms = self.monotonic_ms()
        topic = flow.lanes[0].topic.key
        asks_now = key.due_ms <= at_ms
        for later in key.holds_up(flow, flow.rules.keys, at_ms):
            self.agenda.settle_soon(later)
        if not asks_now:
            self._let_go(key, at_ms)
        self._lacked.pop(topic, None)  # the oldest stands first
        self._lacked[topic] = (at_ms, wanted)
        self._topics.setdefault(topic, {})[key] = None
        flow.parked = key
        key.park(topic, flow, flow.tenant.start, min(flow.ready, wanted), at_ms)
        self.agenda.schedule(key, at_ms)
        return asks_now

    def hint(self, call: DequeueCall, now_ms: int) -> Hint | None:
        """Return why `call` gets nothing: its topic that may have tokens again first, here or on another host that was
        asked. `now_ms` is the host's clock."""
        first = self.first_due([topic for topic, _ in call.wants]) if self._topics else None
        elsewhere = call.hint
        if first is None:
            return elsewhere
        retry_at_ms = now_ms + max(1, self.due_in_ms(first))
        if elsewhere is not None and elsewhere.retry_at_ms is not None and elsewhere.retry_at_ms < retry_at_ms:
            return elsewhere
        return Hint(f"throttled: {first.name}", retry_at_ms)

    def first_due(self, topics: Sequence[TopicKey]) -> Key | None:
        """Return the key that flows of the topics are parked on and that may have tokens first."""
        first: Key | None = None
        for topic in topics:
            for key in islice(self._topics.get(topic, ()), _KEYS):
                if (topic in key.active or topic in key.asleep) and (first is None or key.due_ms < first.due_ms):
                    first = key
        return first

    def dry_key(self, flow: Parked) -> Key | None:
        """Return the key that the flow is parked on, or would be if a consumer asked now, as far as this host knows."""
        if flow.parked is not None:
            return flow.parked  # type: ignore[no-any-return]
        rules, at_ms = flow.rules, self.monotonic_ms()
        keys: Sequence[Key] = () if rules is None or rules.changes != self.changes else rules.keys
        dry = (key for key in keys if key.due_ms > at_ms and not key.allowance.held(at_ms))
        return next((key for key in dry if not key.throttle.shadow), None)

    def due_in_ms(self, key: Key) -> int:
        """Return the time until the key's coordinator may have tokens."""
        return key.due_ms - self.monotonic_ms()

    def asks(self, topic: TopicKey) -> bool:
        """Whether flows of the topic wait for an answer of a coordinator."""
        keys = islice(self._topics.get(topic, ()), _KEYS)
        return any(topic in key.active and (key in self.agenda or key.allowance.asked is not None) for key in keys)

    def _resolve(self, flow: Parked) -> Rules:
        topic = flow.lanes[0].topic.key
        namespace = self._policies.namespaces.get(topic[0])
        keys: list[Key] = []
        if namespace is not None:
            names = {*flow.throttles, *namespace.of(topic[1]).throttles}
            keys = [key for name in sorted(names) if (key := self._key(topic[0], name)) is not None]
        rules = flow.rules = Rules(self.changes, tuple(keys), self)
        return rules

    def _key(self, ns: str, name: str) -> Key | None:
        """Return the key with its present throttle, None if it has none."""
        bounded = (ns, THROTTLE + name)
        throttle, key = self._policies.namespace(ns).throttle(name), self.keys.get(bounded)
        if throttle is None:
            return None
        if key is None:
            at_ms, slot = self.monotonic_ms(), slot_of(digest_of(*bounded))
            allowance = Allowance(at_ms, self._numbers, self.lost)
            key = self.keys[bounded] = ThrottleKey(ns, name, throttle, slot, allowance, self._next_moment())
        elif key.throttle != throttle:
            key.update(throttle, self.monotonic_ms(), self._next_moment())
            self.agenda.settle_soon(key)
        return key

    # ------------------------------------------------------------------------------------- tokens

    def turn(self) -> list[Key]:
        """Wake flows, and return keys whose coordinators are asked now: take the question of each from `ask`."""
        at_ms = self.monotonic_ms()
        for key in self.agenda.due(at_ms):
            if self._in_force(key):
                self._settle(key, at_ms)
        return self.agenda.fresh()

    def ask(self, key: Key) -> Ask | None:
        """Return the question for the key's coordinator, None if it needs none now."""
        self.agenda.asked(key)
        if not self._in_force(key):
            self._beating.discard(key)
            return None
        if key.allowance.asked is not None:
            return None
        at_ms = self.monotonic_ms()
        beat = key in self._beating
        self._beating.discard(key)
        self._wake(key, at_ms)
        need = key.need(self._wanted)
        if key.active and not need:
            for topic, flow in key.doze(self._demanded, _lives):
                self._unpark(topic, flow)
        asked = key.ask(need, at_ms, self._next_moment(), beat=beat)
        if asked is None and key.active:  # its tokens are claimed
            self._let_go(key, at_ms)
            self.agenda.settle_at(key, max(at_ms + 1, key.claims_end_ms(at_ms)))
        return asked

    def answered(self, key: Key, ask: Ask, grant: Grant | None) -> None:
        """Take the coordinator's answer, None if there is none."""
        if not (key.allowance.waits_for(ask) and self._in_force(key)):
            return
        at_ms = self.monotonic_ms()
        key.answered(ask, grant, at_ms, self._random())
        if key.allowance.balance:
            self._holding[key] = None
            key.behind.clear()
        else:
            self._let_go(key, at_ms)
        self._settle(key, at_ms)

    def beat(self) -> bool:
        """Report the tokens held here, which keeps them good, and return those that are not needed. Call it twice a
        second or so. Return False if no throttle key is in use."""
        at_ms = self.monotonic_ms()
        if self._holding and not self._reporting:
            self._reporting = True
            self._long_work(self._report())
        while self._lacked:
            topic, (lacked_ms, _) = next(iter(self._lacked.items()))
            if at_ms - lacked_ms < _RECENT_MS:
                break
            del self._lacked[topic]
        self._look_after(at_ms)
        return bool(self.keys or self._topics or self._lacked)

    def leave(self) -> list[tuple[Key, Ask]]:
        """Return the questions that give all tokens back. Call it when this host delivers nothing any more."""
        at_ms = self.monotonic_ms()
        held = [key for key in self._holding if key.allowance.held(at_ms)]
        return [(key, key.allowance.ask(0, at_ms, ahead=False, spare=True)) for key in held]

    def _report(self) -> Iterator[None]:
        for done, key in enumerate(list(self._holding), 1):
            key.allowance.beat(self.monotonic_ms())
            if key.allowance.balance:
                self._beating.add(key)
                self.agenda.ask(key)
            else:
                self._holding.pop(key, None)
            if done % _SLICE == 0:
                yield
        self._reporting = False

    def _look_after(self, at_ms: int) -> None:
        """Wake another flow of some topics that are asleep, whose awake flow may have ended; forget unused keys."""
        left = 2 * _SLICE
        for topic, keys in list(islice(self._topics.items(), _SLICE)):
            if left <= 0:
                break
            del self._topics[topic]
            for key in list(islice(keys, _SLICE)):
                left -= 1
                del keys[key]
                parking = key.asleep.get(topic)
                scout = None if parking is None else parking.scout
                if parking is not None and (scout is None or scout.parked is not None or not _lives(scout)):
                    for _, flow in key.scout(topic, _lives):
                        self._unpark(topic, flow)
                if topic in key.active or topic in key.asleep:
                    keys[key] = None
            if keys:
                self._topics[topic] = keys  # at the end
        for bounded, key in list(islice(self.keys.items(), _SLICE)):
            del self.keys[bounded]
            if key.unused and key not in self.agenda and at_ms - key.used_ms > _RECENT_MS:
                self.changes += 1  # flows that have it look it up again
            else:
                self.keys[bounded] = key

    def _let_go(self, key: Key, at_ms: int) -> None:
        """Flows that are parked on a key without tokens have no use for those of their other keys."""
        behind, key.behind = key.behind, {}
        for other, flows in behind.items():
            for flow in flows:
                other.settled(flow)
            if other.unneeded(at_ms):
                other.returning = True
                self.agenda.ask(other)
            else:
                self.agenda.settle_soon(other)

    def _settle(self, key: Key, at_ms: int) -> None:
        self._wake(key, at_ms)
        self.agenda.schedule(key, at_ms)

    def _wake(self, key: Key, at_ms: int) -> None:
        for topic, flow in key.wake(self._demanded, _lives, at_ms):
            self._unpark(topic, flow)

    def _unpark(self, topic: TopicKey, flow: Parked) -> None:
        flow.parked = None
        flow.wake()
        self._woken(topic)

    def _demanded(self, topic: TopicKey) -> bool:
        if self._policies.pausing and self._policies.paused(topic):
            return False
        if topic in self._waiting:
            return True
        lacked = self._lacked.get(topic)
        return lacked is not None and self.monotonic_ms() - lacked[0] < _RECENT_MS

    def _wanted(self, topic: TopicKey) -> int:
        """Return how many items of the topic consumers want."""
        if not self._demanded(topic):
            return 0
        waiting = self._waiting.get(topic)
        if waiting is not None:
            return sum([max(items for _, items in call.wants) for call in islice(waiting, _CALLS)])
        return self._lacked[topic][1]

    # ------------------------------------------------------------------------------------- changes

    def changed(self, ns: str) -> None:
        """Other throttles or policies of the namespace are in force: from now on for each dequeue. Flows wake whose
        keys have no throttle any more, or another one."""
        self.changes += 1
        self._changed_at = self._next_moment()
        if self._policies.namespace(ns).throttled:
            self._tokens_wanted()
        if self.keys:
            self._long_work(self._follow(ns))

    def _follow(self, ns: str) -> Iterator[None]:
        done = 0
        for bounded, key in [item for item in self.keys.items() if item[0][0] == ns]:
            now = self._key(ns, key.name)
            if now is None and self.keys.get(bounded) is key:
                del self.keys[bounded]
                self._holding.pop(key, None)
            for topic, parking in list(key.parked()):
                for flow in parking:
                    done += 1
                    if not _lives(flow):
                        key.remove(topic, flow)
                    elif now is not key or now.throttle.shadow or key not in self._resolve(flow).keys:
                        key.remove(topic, flow)
                        self._unpark(topic, flow)
                    if done % _SLICE == 0:
                        yield
            done += 1
            if done % _SLICE == 0:
                yield

    def _in_force(self, key: Key) -> bool:
        """Whether this is the key in use. If its throttle was removed and set again, another object took its place: a
        report of this one would take the tokens of that one for spent, as the coordinator knows one host."""
        return self.keys.get(key.bounded) is key

    def _next_moment(self) -> int:
        self.moment += 1
        return self.moment

    def give_back(self, rules: Rules, moment: int) -> None:
        """Take back the tokens of an item that was leased at that moment and not delivered. Before the last change the
        item may have had other keys."""
        if moment < self._changed_at:
            return
        at_ms = self.monotonic_ms()
        for key in rules.keys:
            if self._in_force(key) and key.give_back(moment, at_ms):
                self._holding[key] = None
                self.agenda.settle_soon(key)


def give_back(item: Item) -> None:
    """Return the tokens of an item that did not reach its consumer, or was released as not begun."""
    flow = item.lane.flow
    if flow is not None and flow.rules is not None and item.given is not None and item.given.moment is not None:
        flow.rules.owner.give_back(flow.rules, item.given.moment)


def _lives(flow: Parked) -> bool:
    """Whether the flow has items to deliver. If not, it is parked no more."""
    if flow.lanes and flow.ready:
        return True
    flow.parked = None
    return False
