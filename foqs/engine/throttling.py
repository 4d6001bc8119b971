"""Throttles on one host: which flows may be delivered, which are parked, and which throttle keys need tokens.

`foqs.peers.borrower` asks the coordinators for units. A flow is delivered if there is a token of each of its
keys; else it takes none, and is parked on the first key, the slowest first, that has none. All hosts have the same
order, so no two flows wait for each other. A flow may keep a token while it waits for the next one (`Gate.keep`): it
then keeps one of a slow key until a faster key makes one, which is short for the slow key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count, islice, takewhile
from typing import Any, NamedTuple

from foqs.bounds import THROTTLE, Bounded
from foqs.engine.calls import DequeueCall, Hint
from foqs.engine.concurrency import RECENT_MS, AnyGate, Concurrency, Demand, Parked, gates_of, lives, urgency
from foqs.engine.shard import Shard
from foqs.fairness.keys import TopicKey
from foqs.ids import digest_of, hash_slot_of
from foqs.item import Item
from foqs.limits.allowance import Allowance, Lost
from foqs.limits.bucket import Ask
from foqs.limits.gate import Agenda
from foqs.limits.lease_slots import ShardSlots, SlotAsk
from foqs.limits.shadow_hour import ShadowHours
from foqs.limits.throttle_key import ThrottleKey
from foqs.policies.entries import Throttle
from foqs.policies.layers import Policies

Key = ThrottleKey[TopicKey, Parked]

_SLICE = 500


class Rules(NamedTuple):
    """The throttles of a flow, when `Throttling.changes` had this value. `keys` have a rate; the slowest comes first,
    and keys of one rate are in the order of their names. `limited`: some key has a limit on leases."""

    changes: int
    keys: tuple[Key, ...]
    limited: bool
    owner: Throttling


class Throttling:
    """`waiting`: the consumers that wait. `woken(topic)`: flows of the topic may be delivered. `tokens_wanted`: call
    `turn` soon. `long_work` is done in parts. `monotonic_ms` never goes back, as the host's clock may.

    `shadow_rates` and `shadow_leases`: what throttles in shadow counted on this host in the last hour.

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
        serving: Callable[[], Sequence[Shard]] = tuple,
    ) -> None:
        self._policies = policies
        self._woken = woken
        self._long_work = long_work
        self._random = random
        self._tokens_wanted = tokens_wanted
        self.monotonic_ms = monotonic_ms
        self.changes = 0
        self.moment = 0
        self._changed_at = 0
        self.keys: dict[Bounded, Key] = {}
        self.agenda: Agenda[AnyGate] = Agenda(tokens_wanted)
        self.demand = Demand(policies, waiting, monotonic_ms)
        self._beating: set[AnyGate] = set()
        self._holding: dict[AnyGate, None] = {}  # gates with units
        self._reporting = False
        self.concurrency = Concurrency(
            policies, self.agenda, self.demand, self._holding, self._unpark, long_work, monotonic_ms, serving
        )  # fmt: skip
        self.lost = Lost()
        self.shadow_rates = ShadowHours()
        self.shadow_leases = ShadowHours()  # of the keys that this host coordinates
        self._numbers = count(1)

    # ------------------------------------------------------------------------------------- dequeues

    def take(self, flow: Parked, item: Item) -> AnyGate | None:
        """Take one token of each of the flow's keys, and a slot of each in the item's shard, for an item of it that is
        delivered next. If a key has none, take nothing and return where the flow waits: `park` it."""
        rules = flow.rules
        if rules is None or rules.changes != self.changes:
            rules = self._resolve(flow)
        if not (rules.keys or rules.limited):
            return None
        at_ms = self.monotonic_ms()
        for key in rules.keys:
            if not (key.has_room(flow, at_ms) or key.throttle.shadow):
                return key  # type: ignore[no-any-return]
        if rules.limited:
            full = self.concurrency.lacking(flow, item.lane, at_ms)
            if full is not None:
                return full
            self.concurrency.lease(flow, item, at_ms)
        flow.waits_ms = 0
        for key in rules.keys:
            key.settled(flow)
            if not key.spend(at_ms) or key.allowance.used_up():
                self.agenda.schedule(key, at_ms)
        return None

    def enough(self, wanted: Iterable[tuple[Parked, int]]) -> bool:
        """Return True if these numbers of items of the flows may be delivered together. `spend` takes their tokens
        then, as `take` would for one item after the other. No key is a shadow, and none limits leases."""
        left: dict[Key, int] = {}
        at_ms = self.monotonic_ms()
        for flow, items in wanted:
            if not items:
                continue
            rules = flow.rules
            if rules is None or rules.changes != self.changes:
                rules = self._resolve(flow)
            if rules.limited:
                return False
            for key in rules.keys:
                if key not in left:
                    left[key] = 0 if key.throttle.shadow else key.room(at_ms)
                left[key] += key.claims(flow) - items
                if left[key] < 0:
                    return False
        return True

    def spend(self, given: Iterable[tuple[Parked, int]]) -> None:
        """Take the tokens of items that are delivered next, no more than `enough` allowed."""
        at_ms = self.monotonic_ms()
        for flow, items in given:
            if items:
                flow.waits_ms = 0
                for key in flow.rules.keys:
                    key.settled(flow)
                    key.spend(at_ms, items)
                    if key.allowance.used_up():
                        self.agenda.schedule(key, at_ms)

    def park(self, flow: Parked, gate: AnyGate, wanted: int) -> bool:
        """Park the flow at a gate that `take` returned, for a consumer that wants `wanted` more items. Return True if
        the coordinator is asked at once: the consumer may wait for that answer."""
        at_ms = self.monotonic_ms()
        topic = flow.lanes[0].topic.key
        asks_now, items = gate.due_ms <= at_ms, min(flow.ready, wanted)
        flow.waits_ms = flow.waits_ms or at_ms
        for key in takewhile(lambda key: key is not gate, flow.rules.keys):
            if key.keep(topic, flow, flow.waits_ms, at_ms):
                self.agenda.settle_soon(key)
        for later in gate.holds_up(flow, flow.rules.keys, at_ms):
            self.agenda.settle_soon(later)
        if isinstance(gate, ShardSlots):
            items = self.concurrency.before_parking(flow, gate, items, at_ms)
            asks_now = asks_now and gate.counted
        elif flow.rules.limited:
            self.concurrency.keep(flow, at_ms)
        if not asks_now or isinstance(gate, ShardSlots):
            self._let_go(gate, at_ms)
        self.demand.parked(topic, gate, wanted, at_ms)
        flow.parked = gate
        keeping = any(other.keeps(flow) for other in gates_of(flow))
        gate.park(topic, flow, flow.tenant.start, flow.waits_ms, items, at_ms, keeping=keeping)
        self.agenda.schedule(gate, at_ms)
        return asks_now

    def withdraw(self, flow: Parked) -> None:
        """Let the flow wait for no unit, and give up the units that it has a claim on: its tenant is paused. Where it
        was to notice consumers of a topic that is asleep, another flow of the topic does."""
        topic, at = flow.lanes[0].topic.key, flow.parked
        flow.parked, flow.waits_ms = None, 0
        for gate in {*gates_of(flow), *(() if at is None else (at,))}:
            gate.remove(topic, flow)
            if topic in gate.asleep and gate.asleep[topic].scout is flow:
                for _, other in gate.scout(topic, lives):
                    self._unpark(topic, other)
            self.agenda.settle_soon(gate)

    def hint(self, call: DequeueCall, now_ms: int) -> Hint | None:
        """Return why `call` gets nothing: its topic that may be delivered again first, here or on another host that was
        asked. `now_ms` is the host's clock."""
        first = self.demand.first_due([topic for topic, _ in call.wants]) if self.demand.topics else None
        elsewhere = call.hint
        if first is None:
            return elsewhere
        retry_at_ms = now_ms + max(1, self.due_in_ms(first))
        if elsewhere is not None and elsewhere.retry_at_ms is not None and elsewhere.retry_at_ms < retry_at_ms:
            return elsewhere
        return Hint(first.why, retry_at_ms)

    def dry_gate(self, flow: Parked) -> AnyGate | None:
        """Return the gate at which the flow is parked, or would be if a consumer asked now, as far as this host
        knows."""
        if flow.parked is not None:
            return flow.parked  # type: ignore[no-any-return]
        rules, at_ms = flow.rules, self.monotonic_ms()
        if rules is None or rules.changes != self.changes:
            return None
        for key in rules.keys:
            if key.due_ms > at_ms and not (key.allowance.good(at_ms) or key.throttle.shadow):
                return key  # type: ignore[no-any-return]
        return self.concurrency.full_gate(flow, at_ms) if rules.limited else None

    def due_in_ms(self, gate: AnyGate) -> int:
        """Return the time until the gate's coordinator may have units."""
        return gate.due_ms - self.monotonic_ms()

    def asks(self, topic: TopicKey) -> bool:
        """Return True if flows of the topic wait for an answer of a coordinator."""
        gates = self.demand.gates(topic)
        return any(topic in gate.active and (gate in self.agenda or gate.answers_soon) for gate in gates)

    def rules_of(self, flow: Parked) -> Rules:
        """Return the present throttles of a flow."""
        rules = flow.rules
        return self._resolve(flow) if rules is None or rules.changes != self.changes else rules

    def _resolve(self, flow: Parked) -> Rules:
        topic = flow.lanes[0].topic.key
        namespace = self._policies.namespaces.get(topic[0])
        keys: list[Key] = []
        limited = False
        if namespace is not None:
            names = {*flow.throttles, *namespace.of(topic[1]).throttles}
            keys = [key for name in names if (key := self._key(topic[0], name)) is not None]
            keys.sort(key=lambda key: (key.throttle.per_second, key.name))
            limited = namespace.limits is not None and any(map(namespace.concurrency, names))
        rules = flow.rules = Rules(self.changes, tuple(keys), limited, self)
        return rules

    def _key(self, ns: str, name: str) -> Key | None:
        """Return the key with its present throttle, None if it has no rate."""
        bounded = (ns, THROTTLE + name)
        throttle, key = self._policies.namespace(ns).throttle(name), self.keys.get(bounded)
        if throttle is None or throttle.per_second is None:
            return None
        if key is None:
            at_ms, hash_slot = self.monotonic_ms(), hash_slot_of(digest_of(*bounded))
            allowance = Allowance(at_ms, self._numbers, self.lost)
            key = self.keys[bounded] = ThrottleKey(ns, name, throttle, hash_slot, allowance, self._next_moment())
        elif key.throttle != throttle:
            key.update(throttle, self.monotonic_ms(), self._next_moment())
            self.agenda.settle_soon(key)
        if throttle.shadow and key.hour is None:
            key.hour = self.shadow_rates.of(bounded, throttle, self.monotonic_ms())
        return key

    # ------------------------------------------------------------------------------------- coordinators

    def turn(self) -> list[AnyGate]:
        """Wake flows, and return the gates whose coordinators are asked now: take the question of each from `ask`."""
        at_ms = self.monotonic_ms()
        for gate in self.agenda.due(at_ms):
            self._settle(gate, at_ms)
        return self.agenda.fresh()

    def ask(self, gate: AnyGate) -> Ask | SlotAsk | None:
        """Return the question for the gate's coordinator, None if it needs none now."""
        self.agenda.asked(gate)
        beat = gate in self._beating
        self._beating.discard(gate)
        if gate.closed or gate.asking:
            return None
        at_ms = self.monotonic_ms()
        self._wake(gate, at_ms)
        need = gate.need(self.demand.wanted)
        if gate.active and not need:
            for topic, flow in gate.doze(self.demand.of, lives):
                self._unpark(topic, flow)
        if isinstance(gate, ShardSlots):
            return gate.ask(need, at_ms, *(urgency(gate, at_ms) if need else (0, 0)), beat=beat)
        asked = gate.ask(need, at_ms, self._next_moment(), beat=beat)
        if asked is None and gate.active:  # its tokens are claimed
            self._let_go(gate, at_ms)
            self.agenda.settle_at(gate, max(at_ms + 1, gate.claims_end_ms(at_ms)))
        return asked

    def answered(self, gate: AnyGate, ask: Any, grant: Any) -> None:
        """Take the coordinator's answer, None if there is none."""
        at_ms = self.monotonic_ms()
        if gate.closed or not gate.answered(ask, grant, at_ms, self._random()):
            return
        if gate.holds:
            self._holding[gate] = None
            gate.behind.clear()
        else:
            self._let_go(gate, at_ms)
        self._settle(gate, at_ms)

    def beat(self) -> None:
        """Report the units held here, which keeps them good, and return units that are not needed. Call it about twice
        a second."""
        at_ms = self.monotonic_ms()
        if self._holding and not self._reporting:
            self._reporting = True
            self._long_work(self._report())
        self.demand.forget(at_ms)
        for hours in (self.shadow_rates, self.shadow_leases):
            hours.forget(at_ms)
        self._look_after(at_ms)
        self.concurrency.tend()

    def leave(self) -> list[tuple[Key, Ask]]:
        """Return the questions that give all tokens back. Call it when this host has stopped delivering."""
        at_ms = self.monotonic_ms()
        held = [key for key in self._holding if isinstance(key, ThrottleKey) and key.allowance.good(at_ms)]
        return [(key, key.allowance.ask(0, at_ms, ahead=False, spare=True)) for key in held]

    def _report(self) -> Iterator[None]:
        for done, gate in enumerate(list(self._holding), 1):
            gate.end_keep(self.demand.waits)
            if gate.tend(self.monotonic_ms()) and not gate.closed:
                self._beating.add(gate)
                self.agenda.ask(gate)
            else:
                self._holding.pop(gate, None)
            if done % _SLICE == 0:
                yield
        self._reporting = False

    def _look_after(self, at_ms: int) -> None:
        """Wake another flow of some topics that are asleep, whose awake flow may have ended; forget unused keys."""
        left, topics = 2 * _SLICE, self.demand.topics
        for topic, gates in list(islice(topics.items(), _SLICE)):
            if left <= 0:
                break
            del topics[topic]
            for gate in list(islice(gates, _SLICE)):
                left -= 1
                del gates[gate]
                parking = gate.asleep.get(topic)
                scout = None if parking is None else parking.scout
                if parking is not None and (scout is None or scout.parked is not None or not lives(scout)):
                    for _, flow in gate.scout(topic, lives):
                        self._unpark(topic, flow)
                if topic in gate.active or topic in gate.asleep:
                    gates[gate] = None
            if gates:
                topics[topic] = gates  # at the end
        for bounded, key in list(islice(self.keys.items(), _SLICE)):
            del self.keys[bounded]
            if key.unused and key not in self.agenda and at_ms - key.used_ms > RECENT_MS:
                key.closed = True
                self.changes += 1  # flows that have it look it up again
            else:
                self.keys[bounded] = key

    def _let_go(self, gate: AnyGate, at_ms: int) -> None:
        """Flows that are parked at a gate without units have no use for the tokens of their other keys."""
        behind, gate.behind = gate.behind, {}
        for other, flows in behind.items():
            for flow in flows:
                if not other.keeps(flow):
                    other.settled(flow)
            if other.unneeded(at_ms):
                other.returning = True
                self.agenda.ask(other)
            else:
                self.agenda.settle_soon(other)

    def _settle(self, gate: AnyGate, at_ms: int) -> None:
        """Wake flows for the units here, and ask for more if they lack some."""
        if gate.closed:
            return
        self._wake(gate, at_ms)
        self.agenda.schedule(gate, at_ms)
        if isinstance(gate, ShardSlots) and gate.awake:
            self.agenda.settle_at(gate, gate.claims_end_ms(at_ms))

    def _wake(self, gate: AnyGate, at_ms: int) -> None:
        gate.end_keep(self.demand.waits)
        for topic, flow in gate.wake(self.demand.of, lives, at_ms):
            self._unpark(topic, flow)
        gate.end_claims(at_ms)

    def _unpark(self, topic: TopicKey, flow: Parked) -> None:
        flow.parked = None
        for gate in gates_of(flow):
            gate.woken(flow, self.monotonic_ms())
        flow.wake()
        self._woken(topic)

    # ------------------------------------------------------------------------------------- changes

    def changed(self, ns: str) -> None:
        """Follow other throttles or policies of the namespace, from now on for each dequeue. Wake flows
        whose keys lost their throttle or got another one."""
        self.changes += 1
        self._changed_at = self._next_moment()
        if self._policies.namespace(ns).throttled:
            self._tokens_wanted()
        self.concurrency.changed(ns)
        if self.keys:
            self._long_work(self._follow(ns))
        for hours in (self.shadow_rates, self.shadow_leases):
            if hours:
                self._long_work(hours.follow(ns, partial(self._shadow, ns), self.monotonic_ms()))

    def _follow(self, ns: str) -> Iterator[None]:
        done = 0
        for bounded, key in [item for item in self.keys.items() if item[0][0] == ns]:
            now = self._key(ns, key.name)
            if now is None and self.keys.get(bounded) is key:
                del self.keys[bounded]
                key.closed = True
                self._holding.pop(key, None)
            for topic, parking in list(key.parked()):
                for flow in parking:
                    done += 1
                    if not lives(flow):
                        key.remove(topic, flow)
                    elif now is not key or now.throttle.shadow or key not in self._resolve(flow).keys:
                        key.remove(topic, flow)
                        self._unpark(topic, flow)
                    if done % _SLICE == 0:
                        yield
            done += 1
            if done % _SLICE == 0:
                yield

    def _shadow(self, ns: str, name: str) -> Throttle | None:
        throttle = self._policies.namespace(ns).throttle(name)
        return throttle if throttle is not None and throttle.shadow else None

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
            if not key.closed and key.give_back(moment, at_ms):
                self._holding[key] = None
                self.agenda.settle_soon(key)


def give_back(item: Item) -> None:
    """Return the tokens of an item that did not reach its consumer, or was released as not begun."""
    flow = item.lane.flow
    if flow is not None and flow.rules is not None and item.given is not None and item.given.moment is not None:
        flow.rules.owner.give_back(flow.rules, item.given.moment)
