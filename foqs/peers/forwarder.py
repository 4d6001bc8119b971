"""Requests that reach a host that cannot answer them from its own shards, and go to a host that can.

Acks, nacks, extensions, deletes and look-ups go to the owner of the item's shard, an enqueue with a deduplication key
or an order key to the owner of the key's shard. A plain enqueue goes to any host that has shards, when this host has no
healthy one; a dequeue to a host that is known to have the topic, when nothing of it is ready here.

A lone host is a cluster with one host. It answers each request itself: every shard is here, or does not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import compress, islice
from typing import Any

from foqs.buffers.pending_dedup import Keyed
from foqs.engine import dedup, item_ops
from foqs.engine.calls import PER_WORKER, DequeueCall, EnqueueCall, Hint, ItemsCall
from foqs.engine.engine import Engine
from foqs.engine.listing import Search
from foqs.errors import FoqsError, NotSent, NotServed, OutcomeUnknown
from foqs.fairness.keys import TopicKey
from foqs.idl import LeasedBytes, idl, is_forwarded
from foqs.order import KeyHome
from foqs.peers.batch_messages import BatchMessages
from foqs.peers.forwarded import Ask, Done, Exchange, ForwardLog, Incoming, LongIncoming, Timers
from foqs.peers.forwarded_batches import ForwardedBatch, ForwardedCreateBatch
from foqs.peers.forwarded_requests import (
    NACK,
    ForwardedEnqueue,
    ForwardedExplain,
    ForwardedGetItem,
    ForwardedGetItemOfKey,
    ForwardedGetResult,
    ForwardedItems,
    ForwardedKeyedEnqueue,
    ForwardedList,
    Kind,
)
from foqs.peers.hash_slots import SlotMigration
from foqs.peers.key_changes import KeyChanges
from foqs.peers.ready_topics import ReadySubscriber
from foqs.shardmgr.facts import SlotMove, Slots
from foqs.shardmgr.routing import Route, Routing, bits_of, make_routing, missing, slots_of

_ENQUEUE_TRIES = 3
_REOPENED_MS = 2_000
"""How long a lone host waits for a shard that it opens again."""
_LOOKED_AT = 100
"""Further consumers of a topic in a search for consumers that another host may serve."""


class Forwarder:
    """`ask` sends a request to another host, `cut` ends the requests to an address. `share_slots` is called when a slot
    of deduplication keys has no shard; `changed` whenever `routing` gives another value.

    A method that forwards returns False, or None, if this host answers the request itself."""

    def __init__(
        self,
        engine: Engine,
        routing: Callable[[], Routing],
        ask: Ask,
        cut: Callable[[str], None],
        timers: Timers,
        requests: ForwardLog,
        *,
        handover_ms: int,
        slots_arrived: Callable[[Mapping[int, SlotMove]], None],
        share_slots: Callable[[], None],
    ) -> None:
        self.engine = engine
        self.routing = routing
        self.ask = ask
        self.handover_ms = handover_ms
        self.exchange = Exchange(engine, routing, ask, timers, requests, handover_ms)
        self.other_hosts = self.exchange.other_hosts
        self.send = self.exchange.send
        self.ask_others = self.exchange.ask_others
        self.watch = ReadySubscriber(ask, timers.later, self.fetch)
        self.slot_moves = SlotMigration(engine, routing, ask, timers.later, slots_arrived)
        self.key_changes = KeyChanges(engine, routing, ask, self.slot_moves.adopt)
        self.batches = BatchMessages(engine, routing, ask, timers.soon)
        self._cut = cut
        self._share_slots = share_slots
        self._now_ms = timers.now_ms
        self._addresses = frozenset[str]()

    def changed(self) -> None:
        """Follow a new routing: requests to hosts that are gone are lost, and held requests are routed again."""
        self.exchange.changed()
        before, self._addresses = self._addresses, frozenset(self.routing().hosts.values())
        for address in sorted(before - self._addresses):
            self._cut(address)
        self.watch.hosts(self.exchange.other_hosts())
        self.slot_moves.changed()
        self.exchange.route_held()

    def shard_served(self) -> None:
        """Follow a shard that was opened here: it may be the source or the target of a move of slots."""
        self.slot_moves.changed()

    def slots(self) -> Sequence[int]:
        """Return the shard of each slot of deduplication keys, after asking for shards for slots that have none."""
        slots = self.routing().slots.shards
        if slots and 0 not in slots:
            return slots
        self._share_slots()
        return self.routing().slots.shards

    # ------------------------------------------------------------------------------------- requests

    def items(
        self, kind: Kind, request: Any, ids: Sequence[int], op: Callable[[int], item_ops.Op], deadline_ms: int,
        call: ItemsCall,
    ) -> ForwardedItems | None:  # fmt: skip
        """Return what forwards the entries of `call` that are not served here; `op` as for `ForwardedItems`."""
        if self._answered_here(request):
            return None
        return ForwardedItems(self.exchange, call, kind, request, ids, op, deadline_ms)

    def get_item(self, call: Incoming, look_here: Callable[[], None], deadline_ms: int) -> bool:
        """Answer a GetItem whose shard is not served here; `look_here` looks again in this host's own shards."""
        if self._answered_here(call.request):
            return False
        ForwardedGetItem(self.exchange, call, look_here, deadline_ms).route()
        return True

    def find_key(
        self, call: Incoming, digest: bytes, find_here: Callable[[], None], found: Callable[[Any], None],
        deadline_ms: int, method: str = "GetItem",
    ) -> bool:  # fmt: skip
        """Find the item of a deduplication key whose slot is not here. `found` gets the response of another host, with
        the item's id, or an error; `find_here` as for `get_item`."""
        if self._answered_here(call.request):
            return False
        ForwardedGetItemOfKey(self.exchange, call, digest, find_here, found, deadline_ms, method).route()
        return True

    def get_result(self, call: LongIncoming, await_here: Callable[[], None], until_ms: int, deadline_ms: int) -> bool:
        """Answer a GetResult whose shard is not served here, and that waits until `until_ms`; `await_here` as for
        `get_item`."""
        if self._answered_here(call.request):
            return False
        ForwardedGetResult(self.exchange, call, await_here, until_ms, deadline_ms).route()
        return True

    def create_batch(self, call: Incoming, now_ms: int, deadline_ms: int) -> bool:
        """Answer a CreateBatch if no shard here can take items now, as an enqueue."""
        addresses = [] if not self.engine.state.shards_elsewhere else self._elsewhere(call.request, now_ms)
        if addresses:
            ForwardedCreateBatch(self.exchange, call, addresses, deadline_ms).route()
        return bool(addresses)

    def batch(self, call: Incoming, ask_here: Callable[[], None], deadline_ms: int) -> bool:
        """Answer a CloseBatch, CancelBatch or GetBatch whose shard is not served here; `ask_here` as for `get_item`."""
        if self._answered_here(call.request):
            return False
        ForwardedBatch(self.exchange, call, ask_here, deadline_ms).route()
        return True

    def explain_item(self, call: Incoming, look_here: Callable[[], None], deadline_ms: int) -> bool:
        """Answer an ExplainItem whose shard is not served here; `look_here` as for `get_item`."""
        if self._answered_here(call.request):
            return False
        ForwardedExplain(self.exchange, call, look_here, deadline_ms).route()
        return True

    def list_items(self, call: Incoming, deadline_ms: int, search: Search | None) -> bool:
        """Answer a ListItems of all shards. Raises Invalid: the cursor is none."""
        if self._answered_here(call.request) or call.request.shard is not None:
            return False
        ForwardedList(self.exchange, call, deadline_ms, search).route()
        return True

    def was_charged(self, request: Any) -> bool:
        """Return True if the host that forwarded the enqueue has charged the namespace's quota."""
        return self.engine.state.shards_elsewhere and is_forwarded(request)

    def enqueue(
        self, waiting: EnqueueCall, indices: Sequence[int], request: Any, now_ms: int, deadline_ms: int
    ) -> bool:
        """Store the items of `request` at `indices` on another host if no shard here can take items now. Shards may be
        elsewhere."""
        addresses = self._elsewhere(request, now_ms)
        if addresses:
            ForwardedEnqueue(self.exchange, waiting, indices, request, addresses, deadline_ms).route()
        return bool(addresses)

    def _elsewhere(self, request: Any, now_ms: int) -> list[str]:
        """Return the hosts that are asked to store what `request` brings, as no shard here can; none if one can."""
        if self.engine.stores(now_ms) or is_forwarded(request):
            return []
        addresses = self.routing().other_owners(self.exchange.host_id)
        self.engine.state.rng.shuffle(addresses)
        return addresses[:_ENQUEUE_TRIES]

    def enqueue_keyed(
        self, waiting: EnqueueCall, items: list[Keyed], request: Any, now_ms: int, deadline_ms: int
    ) -> None:
        """Store items with deduplication keys or order keys on the owners of their shards, this host included."""
        slots, adopt = self.slots(), self.slot_moves.adopt
        forwards = not self._answered_here(request)
        if forwards or self._has_homes():
            ordered = [one for one in items if one.item.order_key is not None]
            items = [one for one in items if one.item.order_key is None] if ordered else items
            for part in (ordered, items if forwards else ()):
                if part:
                    ForwardedKeyedEnqueue(self.exchange, waiting, part, request, deadline_ms, adopt).route()
            if forwards:
                return
        elif is_forwarded(request) and request.homes:
            take_homes(items, request.homes)
        for number, part in dedup.by_shard(slots, items).items():
            if not self.engine.state.shards_elsewhere:
                dedup.place(self.engine.state, waiting, number, part, now_ms)
                continue
            away = dedup.place_taken(self.engine.state, waiting, number, part, now_ms)
            if away:
                waiting.refused([one.at for one in away], NotServed())
                adopt()

    def dequeue(self, call: Incoming, until_ms: int, deadline_ms: int, waiting: DequeueCall) -> bool:
        """Ask one host that is known to have a topic of `waiting`, then the next. A consumer that gets nothing waits
        here until `until_ms`. Return False when no host is known to have one."""
        found = self._known_to_have(waiting)
        if found is None:
            return False
        address, chosen = found
        request = call.request
        # Twice the time in which a host confirms that it owns its shards (`Engine.dequeue`).
        asked_until_ms = min(deadline_ms, self._now_ms() + 2 * self.engine.state.config.host.confirm_ms)

        asked = dict.fromkeys(key for key, _ in waiting.wants if self._may_ask(address, key, waiting))
        if waiting.weights is not None:  # the other topics there would get more than by their weights
            asked = {chosen: None}
        elif waiting.most is not None:  # the rest of many topics would cost time at both hosts
            asked = {key: None for key in asked if address in self.watch.having(*key)}
        wants = [want for want in request.wants if (request.ns, want.topic) in asked]
        if waiting.limits is not None:
            wants = [self._limited(want, (request.ns, want.topic), waiting) for want in wants]
        part = idl.DequeueRequest(
            request.ns, wants, request.lease_ms, max_bytes=request.max_bytes, worker=request.worker,
            begins=request.begins, ledger=request.ledger, most=request.most,
        )  # fmt: skip
        waiting.away = True
        answered = partial(self._dequeued, address, asked, call, request, until_ms, waiting)
        self.exchange.send(address, "Dequeue", part, request, asked_until_ms, answered)
        return True

    def fetch(self, key: TopicKey, ready: int = 1, address: str = "") -> None:
        """Send up to `ready` of the consumers that wait here for a topic to the host that is known to have it: with
        news of the host at `address`, also consumers that it refused."""
        if not self.watch.having(*key):
            return
        found = list(islice(self.engine.state.waiting.get(key, ()), ready + _LOOKED_AT))
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

    def _has_homes(self) -> bool:
        """Return True if order keys have other shards than their slots, on a lone host."""
        state = self.engine.state
        return not state.shards_elsewhere and any(shard.memory.orders.elsewhere for shard in state.serving)

    def _answered_here(self, request: Any) -> bool:
        """Return True if the request may go to no other host: it made its one hop, or there is no other host."""
        return not self.engine.state.shards_elsewhere or is_forwarded(request)

    def _dequeued(
        self, address: str, asked: Iterable[TopicKey], call: Incoming, request: Any, until_ms: int,
        waiting: DequeueCall, response: Any, error: FoqsError | None,
    ) -> None:  # fmt: skip
        """Pass the answer of the host at `address` to the consumer, or ask the next host."""
        waiting.away = False
        response = self._deliverable(address, response, request)
        leased = isinstance(response, LeasedBytes)
        if waiting.done:  # its consumer has disconnected
            self._give_back(address, response, request)
            self._fetch_all(waiting)  # that consumer was sent there in place of the next one
            return
        if leased or (response is not None and (response.items or response.doubtful)):
            waiting.done = True
            if not call.reply(response.body if leased else response):
                self._give_back(address, response, request)
            self._fetch_all(waiting)
            return
        waiting.hint = self._hint(response)
        self._nothing_there(address, asked, waiting, response)
        if isinstance(error, OutcomeUnknown):
            # The lost answer may have held at-most-once items, which no consumer gets now.
            waiting.done = True
            call.fail(error)
        else:
            now_ms = self._now_ms()
            self.engine.dequeue(waiting, now_ms, max(0, until_ms - now_ms))

    def _nothing_there(self, address: str, asked: Iterable[TopicKey], waiting: DequeueCall, response: Any) -> None:
        """Remember that the host has no items of these topics for the consumer. If it has some for other consumers, it
        publishes their topics again when this one may have some."""
        limits = () if response is None or response.reason != PER_WORKER else response.per_worker or ()
        for key in asked:
            if key[1] in limits:
                waiting.refused |= {(address, key)}
            elif response is None or response.news_version is None:
                self.watch.no_answer(address, key)
            else:
                self.watch.found_nothing(address, key, response.news_version)

    def _fetch_all(self, waiting: DequeueCall) -> None:
        """Call `fetch` for each topic of `waiting`."""
        for key, _ in waiting.wants:
            self.fetch(key)

    def _known_to_have(self, waiting: DequeueCall) -> tuple[str, TopicKey] | None:
        """Return a random host of the living hosts that have the first topic that any of them has, and the topic. If
        the topics of the consumer share a bound, take a random topic in place of the first one: none is served last.
        Weights choose among the topics of all hosts: None, if they choose a topic that is ready here."""
        found: list[tuple[TopicKey, list[str]]] = []
        weights = waiting.weights
        for key, _ in waiting.wants:
            addresses = self._askable(key, waiting)
            if addresses or (weights is not None and waiting.far and self.engine.ready(key)):
                found.append((key, addresses))
                if waiting.most is None:
                    break
        if not found:
            return None
        rng = self.engine.state.rng
        if weights is not None:
            key, addresses = rng.choices(found, [weights[key] for key, _ in found])[0]
        else:
            key, addresses = found[0] if len(found) == 1 else rng.choice(found)
        return (rng.choice(addresses), key) if addresses else None

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
        return idl.TopicCount(want.topic, min(want.count, self.engine.state.holdings.room(key, waiting)), holding)

    def _may_ask(self, address: str, key: TopicKey, waiting: DequeueCall) -> bool:
        """Return True if the host at `address` may deliver items of the topic to the consumer."""
        engine = self.engine
        if engine.state.policies.paused(key) or (address, key) in waiting.refused:
            return False
        return not engine.state.policies.per_worker or engine.state.holdings.room(key, waiting) > 0

    def _deliverable(self, address: str, response: Any, origin: Any) -> Any:
        """Return the answer of a host without the items of topics and tenants that were paused here since: the host
        gets them back."""
        policies = self.engine.state.policies
        if response is None or not policies.pausing:
            return response
        kept = response.read() if isinstance(response, LeasedBytes) else response
        items = kept.items or []
        held = [policies.holds((item.ns, item.topic), item.fairness_key or "") for item in items]
        self._give_back(address, idl.DequeueResponse(list(compress(items, held))), origin)
        kept.items = [item for item, holds in zip(items, held, strict=True) if not holds]
        return kept

    def _hint(self, response: Any) -> Hint | None:
        """Return what another host says about its empty answer."""
        if response is None or (response.reason is None and response.retry_after_ms is None):
            return None
        after_ms = response.retry_after_ms
        return Hint(response.reason, None if after_ms is None else self._now_ms() + after_ms)

    def _give_back(self, address: str, response: Any, origin: Any) -> None:
        """Release the leases of a DequeueResponse that no consumer gets. If that fails, they run out."""
        given = response.read() if isinstance(response, LeasedBytes) else response
        if given is None or not given.items:
            return
        releases = [idl.NackItem(item.id, item.lease, release=True) for item in given.items]
        deadline_ms = self._now_ms() + self.engine.state.config.host.confirm_ms
        part = idl.NackRequest(releases)
        self.exchange.send(address, NACK.method, part, origin, deadline_ms, lambda response, error: None)


def take_homes(items: Iterable[Keyed], homes: Sequence[Any]) -> None:
    """Give the items of a forwarded request the homes of their keys, one for each item of the request."""
    for one in items:
        home = homes[one.at] if one.at < len(homes) else None
        if home is not None and home.shard and one.item.order_key is not None:
            one.home = KeyHome(home.shard, home.stamp or 0, bool(home.empty))


class LoneForwarder(Forwarder):
    """The forwarder of a host without other hosts. The host owns the shards that it serves; `address` is its own."""

    def __init__(self, engine: Engine, address: Callable[[], str], timers: Timers, requests: ForwardLog) -> None:
        self._address = address
        self._slots: tuple[int, ...] = ()
        self._known: Routing | None = None
        super().__init__(
            engine, self._own_routing, _not_sent, _nothing, timers, requests,
            handover_ms=_REOPENED_MS, slots_arrived=_nothing, share_slots=self.share_slots,
        )  # fmt: skip

    def _own_routing(self) -> Routing:
        if self._known is None:
            engine, host, address = self.engine, self.engine.state.config.server.id, self._address()
            owners = {shard.number: Route(address, shard.owner.epoch, host) for shard in engine.state.serving}
            self._known = make_routing(owners, {host: address}, engine.state.shards, Slots(shards=self._slots))
        return self._known

    def changed(self) -> None:
        """Follow the shards that are served here."""
        self._known = None

    def shard_served(self) -> None:
        self.share_slots()

    def share_slots(self) -> None:
        """Give slots that no shard has to the shards with the fewest.

        Wait until all shards are open and no slots are being written: a shard may have the missing slots soon."""
        engine = self.engine
        serving = {shard.number: shard.queue.keys.held.bits for shard in engine.state.serving}
        self._slots, self._known = slots_of(serving), None
        keys = [shard.queue.keys for shard in engine.state.serving]
        if len(serving) < len(engine.state.shards) or any(one.last is not one.held for one in keys):
            return
        for number, slots in missing(serving).items():
            shard = engine.state.shards[number]
            shard.queue.keys.wanted = shard.queue.keys.held._replace(bits=bits_of(slots, shard.queue.keys.held.bits))
            engine.state.touch(shard)


def _not_sent(_address: str, _method: str, _request: Any, _timeout_ms: int, done: Done) -> None:
    done(None, NotSent("this host has no way to other hosts"))


def _nothing(_: object) -> None:
    pass
