"""Requests that reach a host that cannot answer them from its own shards, and go to a host that can.

Acks, nacks, extensions, deletes and look-ups go to the owner of the item's shard, an enqueue with a deduplication key
to the owner of the key's shard. A plain enqueue goes to any host that has shards, when this host has no healthy one; a
dequeue to a host that is known to have the topic, when nothing of it is ready here.

Which host serves a shard, for requests that visit all shards of the cluster, one after the other.

The static facts of a lone host, in place of a cluster's: every shard is here, or does not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol

from foqs.buffers.pending_dedup import Keyed
from foqs.engine import dedup, item_ops
from foqs.engine.calls import PER_WORKER, DequeueCall, EnqueueCall, Hint, ItemsCall
from foqs.engine.engine import Engine
from foqs.engine.shard import Shard
from foqs.engine.state import State
from foqs.errors import FoqsError, NotFound, NotSent, NotServed, OutcomeUnknown, Unavailable
from foqs.fairness.keys import TopicKey
from foqs.idl import idl, is_forwarded
from foqs.peers.forwarded import HERE, NO_OWNER, RETRY_MS, Exchange, ForwardLog, Incoming, Target
from foqs.peers.forwarded_requests import (
    NACK,
    ForwardedDedupEnqueue,
    ForwardedEnqueue,
    ForwardedExplain,
    ForwardedGetItem,
    ForwardedItems,
    ForwardedList,
    Kind,
)
from foqs.peers.hash_slots import Found, SlotMigration, SlotOwner
from foqs.peers.ready_topics import Ask, Done, ReadySubscriber
from foqs.shardmgr.facts import SlotMove, Slots
from foqs.shardmgr.routing import Route, Routing, bits_of, make_routing, missing, slots_of


class ShardOwners(Protocol):
    def shards(self) -> list[int]:
        """Return the numbers of all shards, in order."""

    def unowned(self) -> list[int]:
        """Return the shards that no host serves now, in order."""

    def find(self, shard: int) -> Target:
        """Return where a request for the shard goes; an error if no host serves it now."""

    def send(self, address: str, method: str, request: Any, origin: Any, deadline_ms: int, done: Done) -> None:
        """Ask another host on behalf of the caller of `origin`."""


class ClusterOwners:
    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self.send = exchange.send

    def shards(self) -> list[int]:
        return sorted(self._exchange.routing().shards)

    def unowned(self) -> list[int]:
        routing = self._exchange.routing()
        return sorted(routing.shards - routing.owners.keys())

    def find(self, shard: int) -> Target:
        if self._exchange.serves(shard):
            return HERE
        routing = self._exchange.routing()
        route = routing.owners.get(shard)
        if route is None and (shard in routing.disabled or shard not in routing.shards):
            return NotFound(f"shard {shard} is disabled or removed: no host will serve it")
        if route is None or route.host == self._exchange.host_id:
            return Unavailable(NO_OWNER, RETRY_MS)
        return route


class LoneOwners:
    """A lone host serves all shards, or no host does."""

    def __init__(self, state: State) -> None:
        self._state = state

    def shards(self) -> list[int]:
        return sorted(self._state.shards)

    def unowned(self) -> list[int]:
        return sorted(self._state.shards.keys() - {shard.number for shard in self._state.serving})

    def find(self, shard: int) -> Target:
        return HERE if shard not in self.unowned() else Unavailable("the shard is not open", RETRY_MS)

    def send(self, address: str, method: str, request: Any, origin: Any, deadline_ms: int, done: Done) -> None:
        done(None, NotServed("this host has no way to other hosts"))


_ENQUEUE_TRIES = 3
_LOOKED_AT = 100
"""Consumers of a topic that are looked at for those that another host may serve, beyond those that it can serve."""


class Forwarder:
    """`host_id` is this host's own. `ask` sends a request to another host, `cut` ends those to an address; `soon` calls
    back at the next turn of the event loop, `later` after so many milliseconds. `share_slots` is called when a slot of
    deduplication keys has no shard; `changed` whenever `routing` gives another value; `shard_served` when a shard was
    opened here.

    A method that forwards returns False, or None, if this host answers the request itself."""

    def __init__(
        self,
        engine: Engine,
        host_id: str,
        routing: Callable[[], Routing],
        ask: Ask,
        cut: Callable[[str], None],
        *,
        handover_ms: int,
        now_ms: Callable[[], int],
        soon: Callable[[Callable[[], None]], Any],
        later: Callable[[int, Callable[[], None]], Any],
        requests: ForwardLog,
        slots_arrived: Callable[[Mapping[int, SlotMove]], None],
        share_slots: Callable[[], None],
    ) -> None:
        self.engine = engine
        self.routing = routing
        self.ask = ask
        self.exchange = Exchange(
            engine, host_id, routing, ask, handover_ms=handover_ms, now_ms=now_ms, soon=soon, log=requests
        )
        self.ask_others = self.exchange.ask_others
        self.owners = ClusterOwners(self.exchange)
        self.handover_ms = handover_ms
        self.watch = ReadySubscriber(ask, later, self.fetch)
        self.slot_moves = SlotMigration(engine, routing, ask, later, slots_arrived)
        self.shard_served = self.slot_moves.changed  # it may be the source or the target of a move
        self._cut = cut
        self._share_slots = share_slots
        self._now_ms = now_ms
        self._addresses = frozenset(routing().hosts.values())

    def changed(self) -> None:
        """Follow a new routing: requests to hosts that are gone are lost, and held requests are routed again."""
        self.exchange.changed()
        before, self._addresses = self._addresses, frozenset(self.routing().hosts.values())
        for address in sorted(before - self._addresses):
            self._cut(address)
        self.watch.hosts(self.exchange.other_hosts())
        self.slot_moves.changed()
        self.exchange.route_held()

    def slots(self) -> Sequence[int]:
        """Return the shard of each slot of deduplication keys, and ask for shards for those that have none."""
        slots = self.routing().slots.shards
        if not slots or 0 in slots:
            self._share_slots()
        return slots

    def other_hosts(self) -> set[str]:
        """Addresses of the other living hosts."""
        return self.exchange.other_hosts()

    # ------------------------------------------------------------------------------------- requests

    def items(
        self, kind: Kind, request: Any, ids: Sequence[int], op: Callable[[int], item_ops.Op], deadline_ms: int,
        call: ItemsCall,
    ) -> ForwardedItems | None:  # fmt: skip
        """Return what forwards the entries of `call` that are not served here; `op` as for `ForwardedItems`."""
        if is_forwarded(request):
            return None
        return ForwardedItems(self.exchange, call, kind, request, ids, op, deadline_ms)

    def get_item(self, call: Incoming, look_here: Callable[[], None], deadline_ms: int) -> bool:
        """Answer a GetItem whose shard is not served here; `look_here` looks again in this host's own shards."""
        if is_forwarded(call.request):
            return False
        ForwardedGetItem(self.exchange, call, look_here, deadline_ms).route()
        return True

    def explain_item(self, call: Incoming, look_here: Callable[[], None], deadline_ms: int) -> bool:
        """As `get_item`, for an ExplainItem."""
        if is_forwarded(call.request):
            return False
        ForwardedExplain(self.exchange, call, look_here, deadline_ms).route()
        return True

    def list_items(self, call: Incoming, deadline_ms: int) -> bool:
        """Answer a ListItems of all shards. Raises Invalid: the cursor is none."""
        if is_forwarded(call.request) or call.request.shard is not None:
            return False
        ForwardedList(self.exchange, call, deadline_ms).route()
        return True

    def was_charged(self, request: Any) -> bool:
        """Whether the host that forwarded the enqueue has charged the namespace's quota."""
        return is_forwarded(request)

    def enqueue(
        self, waiting: EnqueueCall, indices: Sequence[int], request: Any, now_ms: int, deadline_ms: int
    ) -> bool:
        """Store the items of `request` at `indices` on another host if no shard here can take items now."""
        if self.engine.stores(now_ms) or is_forwarded(request):
            return False
        addresses = self.routing().other_owners(self.exchange.host_id)
        self.engine.rng.shuffle(addresses)
        if addresses:
            specs, tries = [request.items[index] for index in indices], addresses[:_ENQUEUE_TRIES]
            ForwardedEnqueue(self.exchange, waiting, indices, specs, request, tries, deadline_ms).route()
        return bool(addresses)

    def enqueue_keyed(
        self, waiting: EnqueueCall, items: list[Keyed], request: Any, now_ms: int, deadline_ms: int
    ) -> None:
        """Store items with deduplication keys on the owners of their shards, this host included."""
        slots, adopt = self.slots(), self.slot_moves.adopt
        if not is_forwarded(request):
            ForwardedDedupEnqueue(self.exchange, waiting, items, request, deadline_ms, adopt).route()
            return
        for number, part in dedup.by_shard(slots, items).items():
            away = dedup.place_taken(self.engine, waiting, number, part, now_ms)
            if away:
                waiting.refused([one.at for one in away], NotServed())
                adopt()

    def dequeue(self, call: Incoming, until_ms: int, deadline_ms: int, waiting: DequeueCall) -> bool:
        """Ask one host that is known to have a topic of `waiting`, then the next. A consumer that gets nothing waits
        here until `until_ms`. False when no host is known to have one."""
        address = self._known_to_have(waiting)
        if address is None:
            return False
        request = call.request
        # Twice the time in which a host confirms that it owns its shards (`Engine.dequeue`).
        asked_until_ms = min(deadline_ms, self._now_ms() + 2 * self.engine.config.host.confirm_ms)

        def answered(response: Any, error: FoqsError | None) -> None:
            waiting.away = False
            items = [] if response is None else self._deliverable(address, response, request)
            if waiting.done:  # its consumer has disconnected
                self._give_back(address, items, request)
                self._fetch_all(waiting)  # that consumer was sent there in place of the next one
                return
            if items or (response is not None and response.doubtful):
                waiting.done = True
                call.on_lost = None
                if not call.reply(response):
                    self._give_back(address, items, request)
                self._fetch_all(waiting)
                return
            waiting.hint = self._hint(response)
            # The host has items for other consumers, and publishes their topics again when this one may have some.
            limits = () if response is None or response.reason != PER_WORKER else response.per_worker or ()
            for key in asked:
                if key[1] in limits:
                    waiting.refused |= {(address, key)}
                elif response is None or response.news_version is None:
                    self.watch.no_answer(address, key)
                else:
                    self.watch.found_nothing(address, key, response.news_version)
            if isinstance(error, OutcomeUnknown):
                # The lost answer may have held at-most-once items, which no consumer gets now.
                waiting.done = True
                call.on_lost = None
                call.fail(error)
            else:
                now_ms = self._now_ms()
                self.engine.dequeue(waiting, now_ms, max(0, until_ms - now_ms))

        asked = dict.fromkeys(key for key, _ in waiting.wants if self._may_ask(address, key, waiting))
        if waiting.most is not None:  # the rest of many topics would cost time at both hosts
            asked = {key: None for key in asked if address in self.watch.having(*key)}
        wants = [want for want in request.wants if (request.ns, want.topic) in asked]
        if waiting.limits is not None:
            wants = [self._limited(want, (request.ns, want.topic), waiting) for want in wants]
        part = idl.DequeueRequest(
            request.ns, wants, request.lease_ms, max_bytes=request.max_bytes, worker=request.worker,
            begins=request.begins, ledger=request.ledger, most=request.most,
        )  # fmt: skip
        waiting.away = True
        self.exchange.send(address, "Dequeue", part, request, asked_until_ms, answered)
        return True

    def fetch(self, key: TopicKey, ready: int = 1, address: str = "") -> None:
        """Send up to `ready` of the consumers that wait here for a topic to the host that is known to have it: with
        news of the host at `address`, also those that it refused."""
        found = list(islice(self.engine.waiting.get(key, ()), ready + _LOOKED_AT))
        for waiting in sorted(found, key=lambda call: (address, key) in call.refused):
            if waiting.refused:
                waiting.refused -= {(address, key)}
            if waiting.elsewhere is not None and self._askable(key, waiting):
                self.engine.stop_waiting(waiting)
                waiting.elsewhere(waiting)
                ready -= 1
            if not ready:
                return

    # ------------------------------------------------------------------------------------- inside

    def _fetch_all(self, waiting: DequeueCall) -> None:
        """`fetch` for each topic of `waiting` that another host is known to have."""
        for key, _ in waiting.wants:
            if self.watch.having(*key):
                self.fetch(key)

    def _known_to_have(self, waiting: DequeueCall) -> str | None:
        """Return a random one of the living hosts that have the first topic that any of them has. If the topics of the
        consumer share a bound, take a random topic in place of the first one: none is served last."""
        found: list[list[str]] = []
        for key, _ in waiting.wants:
            if addresses := self._askable(key, waiting):
                found.append(addresses)
                if waiting.most is None:
                    break
        if not found:
            return None
        choice = self.engine.rng.choice
        return choice(found[0] if len(found) == 1 else choice(found))

    def _askable(self, key: TopicKey, waiting: DequeueCall) -> list[str]:
        """Return the living hosts that are known to have the topic, and may deliver its items to the consumer."""
        having = self.watch.having(*key)
        if not having or (waiting.far and self.engine.ready(key)):
            return []
        others = self.exchange.other_hosts()
        return [address for address in having if address in others and self._may_ask(address, key, waiting)]

    def _limited(self, want: Any, key: TopicKey, waiting: DequeueCall) -> Any:
        """Return the TopicCount for another host: it wants no more than the consumer may get, and reports the items of
        failed acks."""
        holding = None if want.holding is None else want.holding + waiting.unacked
        return idl.TopicCount(want.topic, min(want.count, self.engine.holdings.room(key, waiting)), holding)

    def _may_ask(self, address: str, key: TopicKey, waiting: DequeueCall) -> bool:
        """Return True if the host at `address` may deliver items of the topic to the consumer."""
        engine = self.engine
        if engine.policies.paused(key) or (address, key) in waiting.refused:
            return False
        return not engine.policies.per_worker or engine.holdings.room(key, waiting) > 0

    def _deliverable(self, address: str, response: Any, origin: Any) -> Sequence[Any]:
        """Take the items of topics that were paused here since out of the answer of a host, which gets them back."""
        items, policies = response.items or [], self.engine.policies
        if policies.pausing:
            self._give_back(address, [item for item in items if policies.paused((item.ns, item.topic))], origin)
            response.items = items = [item for item in items if not policies.paused((item.ns, item.topic))]
        return items

    def _hint(self, response: Any) -> Hint | None:
        """Return what another host says about its empty answer."""
        if response is None or (response.reason is None and response.retry_after_ms is None):
            return None
        after_ms = response.retry_after_ms
        return Hint(response.reason, None if after_ms is None else self._now_ms() + after_ms)

    def _give_back(self, address: str, items: Sequence[Any], origin: Any) -> None:
        """Release leases that no consumer gets. If that fails, they run out."""
        if not items:
            return
        releases = [idl.NackItem(item.id, item.lease, release=True) for item in items]
        deadline_ms = self._now_ms() + self.engine.config.host.confirm_ms
        part = idl.NackRequest(releases)
        self.exchange.send(address, NACK.method, part, origin, deadline_ms, lambda response, error: None)


class LoneForwarder:
    """In place of `Forwarder`: no request leaves this host. `address` is this host's, as clients know it."""

    handover_ms = 2_000
    """How long a shard that is opened again is waited for."""

    def __init__(self, engine: Engine, address: Callable[[], str]) -> None:
        self.owners = LoneOwners(engine)
        self._engine = engine
        self._address = address
        self._slots: tuple[int, ...] = ()
        self._routing: Routing | None = None

    def routing(self) -> Routing:
        """Return the routing: this host owns the shards that it serves."""
        if self._routing is None:
            engine, host, address = self._engine, self._engine.config.server.id, self._address()
            owners = {shard.number: Route(address, shard.epoch, host) for shard in engine.serving}
            self._routing = make_routing(owners, {host: address}, engine.shards, Slots(shards=self._slots))
        return self._routing

    def changed(self) -> None:
        """Follow the shards that are served here."""
        self._routing = None

    def slots(self) -> Sequence[int]:
        """Return the shard of each slot of deduplication keys, and share out those that no shard has."""
        if not self._slots or 0 in self._slots:
            self.share_slots()
        return self._slots

    def share_slots(self) -> None:
        """Give slots that no shard has to the shards with the fewest.

        Wait until all shards are open and no slots are being written: a shard may have the missing slots soon."""
        engine = self._engine
        serving = {shard.number: shard.keys.held.bits for shard in engine.serving}
        self._slots, self._routing = slots_of(serving), None
        if len(serving) < len(engine.shards) or any(shard.keys.last is not shard.keys.held for shard in engine.serving):
            return
        for number, slots in missing(serving).items():
            shard = engine.shards[number]
            shard.keys.wanted = shard.keys.held._replace(bits=bits_of(slots, shard.keys.held.bits))
            engine.touch(shard)

    shard_served = share_slots

    def enqueue_keyed(
        self, waiting: EnqueueCall, items: list[Keyed], request: Any, now_ms: int, deadline_ms: int
    ) -> None:
        for number, part in dedup.by_shard(self.slots(), items).items():
            dedup.place(self._engine, waiting, number, part, now_ms)

    def ask_others(
        self, method: str, part: Callable[[], Any], origin: Any, deadline_ms: int,
        take: Callable[[str, Any], object], end: Callable[[list[str]], object],
    ) -> None:  # fmt: skip
        end([])

    def ask(self, address: str, method: str, request: Any, timeout_ms: int, done: Done) -> None:
        done(None, NotSent("this host has no way to other hosts"))

    def enqueue(self, *_: object) -> bool:
        """Return False, like the methods below that say whether another host has to do with a request."""
        return False

    dequeue = get_item = explain_item = list_items = was_charged = enqueue

    def items(self, *_: object) -> ForwardedItems | None:
        return None

    def other_hosts(self) -> set[str]:
        return set()

    def fetch(self, key: TopicKey) -> None:
        """No other host has items."""


class LoneSlotOwner:
    """In place of `SlotOwners`: this host has all slots since its start."""

    def __init__(self, begun_ms: int) -> None:
        self._begun_ms = begun_ms

    def find(self, slot: int, found: Found) -> None:
        found(SlotOwner(0, 0), self._begun_ms)

    def observe(self) -> None:
        """Nothing changes."""

    def check(self, shard: Shard, then: Callable[[bool], None]) -> None:
        then(True)
