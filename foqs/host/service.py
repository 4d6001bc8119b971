"""The methods of the contract: checks a request, hands it to the host, answers when the host says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from foqs.buffers.keys import Keyed
from foqs.errors import FoqsError, Invalid, NotFound, NotServed, Overloaded, Unavailable
from foqs.host import answers, intake, keyed, ops, slot_moves, strays
from foqs.host.dispense import ITEM_OVERHEAD_BYTES
from foqs.host.forward import Forwarder
from foqs.host.gather import ANSWER_MS, Gathering
from foqs.host.host import Host
from foqs.host.info import Info
from foqs.host.listing import ANSWERS_SHARE, OVERLOADED_RETRY_MS, Listing, active_topics, topics_cursor
from foqs.host.news import Newsroom, WatchCall
from foqs.host.quotas import Quotas
from foqs.host.requests import DequeueCall, EnqueueCall, ItemsCall, LookCall, RoutingCall
from foqs.host.stray_list import StrayList
from foqs.idl import idl
from foqs.item import Item, Phase, Place
from foqs.limits import Limits
from foqs.rows import Body
from foqs.rpc.call import Call
from foqs.shardmgr.facts import Slots
from foqs.shardmgr.routing import Route, Routing, make_routing

_REPLY_OVERHEAD_BYTES = 1024


class Service:
    """`now_ms` is the host's clock; `address` is host:port as clients are told. `forwarder` is None where there are no
    other hosts; where there are, `routing_changed` has to be called when the routing is another one."""

    def __init__(
        self,
        host: Host,
        limits: Limits,
        now_ms: Callable[[], int],
        address: Callable[[], str],
        news: Newsroom,
        quotas: Quotas,
        forwarder: Forwarder | None = None,
    ) -> None:
        self._host = host
        self.limits = limits
        # Called when a slot has no shard. In a cluster that is not for one host to decide: its member sets another one.
        self.share_slots: Callable[[], None] = (lambda: None) if forwarder else partial(keyed.share_out, host)
        self._now_ms = now_ms
        self._address = address
        self._news = news
        self._quotas = quotas
        quotas.share_slots = lambda: self.share_slots()  # noqa: PLW0108 - a cluster sets another one
        self._forwarder = forwarder
        self._routing_calls: dict[RoutingCall, None] = {}
        host.served = self.routing_changed

    def handlers(self) -> dict[str, Callable[[Call], None]]:
        return {
            "Enqueue": self.enqueue,
            "Dequeue": self.dequeue,
            "Ack": self.ack,
            "Nack": self.nack,
            "ExtendLease": self.extend,
            "GetActiveTopics": self.active_topics,
            "GetItem": self.get_item,
            "ListItems": self.list_items,
            "DeleteItems": self.delete,
            "GetServerInfo": Info(self._host, lambda: self.limits, self._now_ms).server_info,
            "GetRouting": self.get_routing,
            "WatchTopics": self.watch_topics,
            "GiveSlot": self.give_slot,
            **self._quotas.handlers(),
        }

    # ------------------------------------------------------------------------------------- the life of an item

    def enqueue(self, call: Call) -> None:
        request, limits = call.request, self.limits
        self._refuse_when_draining()
        ns = intake.name(request.ns, "ns", limits)
        specs = intake.counted(request.items, "items", limits.request_items)
        timeout_ms = intake.timeout_ms(request, limits)
        now_ms = self._now_ms()
        taken = intake.Intake(ns, limits, now_ms)
        taken.take(specs)

        def reply(outcomes: list[int | FoqsError]) -> None:
            call.reply(idl.EnqueueResponse(answers.enqueue_outcomes(call, outcomes, self._host.counters)))

        waiting = EnqueueCall(len(specs), reply)
        for index, error in taken.errors.items():
            waiting.refused([index], error)
        if waiting.done:
            return
        quota, deadline_ms = self._quotas.of(ns), now_ms + timeout_ms
        if quota is None or (self._forwarder is not None and self._forwarder_for(request) is None):
            self._store(waiting, taken, request, deadline_ms)  # what another host sent was charged there
        else:
            store = partial(self._store, waiting, taken, request, deadline_ms)
            self._quotas.charge(ns, quota, taken, waiting, deadline_ms, store)

    def _store(self, waiting: EnqueueCall, taken: intake.Intake, request: Any, deadline_ms: int) -> None:
        host, forwarder, now_ms = self._host, self._forwarder_for(request), self._now_ms()
        if taken.keyed:
            self._enqueue_keyed(waiting, taken.keyed, request, forwarder, deadline_ms)
        if not taken.items:
            return
        if forwarder is not None and not host.stores(now_ms):
            good = [request.items[index] for index in taken.indices]
            if forwarder.enqueue(waiting, taken.indices, good, request, deadline_ms):
                return
        timeout_ms = max(1, deadline_ms - now_ms)
        host.enqueue(waiting, taken.indices, taken.items, taken.keys, taken.sizes, now_ms, timeout_ms)

    def _enqueue_keyed(
        self, waiting: EnqueueCall, items: list[Keyed], request: Any, forwarder: Forwarder | None, deadline_ms: int
    ) -> None:
        host, now_ms = self._host, self._now_ms()
        host.deadlines.push(deadline_ms, waiting)
        host.alarm(deadline_ms)
        slots = host.slots if self._forwarder is None else self._forwarder.routing().slots.shards
        if not slots or 0 in slots:
            self.share_slots()
        if forwarder is not None:
            forwarder.enqueue_keyed(waiting, items, request, deadline_ms)
            return
        for number, part in keyed.by_shard(slots, items).items():
            away = keyed.place(host, waiting, number, part, now_ms)
            if away and self._forwarder is not None:
                waiting.refused([one.at for one in away], NotServed())
                self._forwarder.slot_moves.adopt()

    def dequeue(self, call: Call) -> None:
        request, limits = call.request, self.limits
        self._refuse_when_draining()
        self._refuse_when_full()
        ns = intake.name(request.ns, "ns", limits)
        wants = intake.counted(request.wants, "wants", limits.request_topics)
        keys = [((ns, intake.name(want.topic, "topic", limits)), want.count or 0) for want in wants]
        if len({key for key, _ in keys}) != len(keys):
            raise Invalid("a topic stands in wants more than once")
        intake.within(min(count for _, count in keys), "count", 1, limits.request_items, 1)
        intake.within(sum(count for _, count in keys), "the sum of the counts", 1, limits.request_items, 1)
        lease_ms = intake.within(request.lease_ms, "lease_ms", limits.lease_min_ms, limits.lease_max_ms, 0)
        wait_ms = intake.within(request.wait_ms, "wait_ms", 0, limits.wait_max_ms, 0)
        timeout_ms = intake.timeout_ms(request, limits)
        names_bytes = len(ns.encode()) + max(len(key[1].encode()) for key, _ in keys)
        # An answer has to fit a frame whatever the items are: names and fields are counted at their most.
        most = limits.frame_bytes - _REPLY_OVERHEAD_BYTES
        bodies_bytes = intake.within(request.max_bytes, "max_bytes", 1, (1 << 63) - 1, most)

        def reply(items: list[Item], doubtful: list[int]) -> bool:
            call.on_lost = None  # it refers to what waits, which refers back
            response = idl.DequeueResponse([answers.leased(item) for item in items], doubtful or None)
            if not (items or doubtful) and request.context is not None and request.context.hops:
                response.news_version = self._news.found_nothing(key for key, _ in keys)
            if doubtful:
                call.doubt(len(doubtful), "at-most-once leases that may have been made")
            return call.reply(response)

        waiting = DequeueCall(keys, lease_ms, most, names_bytes + ITEM_OVERHEAD_BYTES, reply, bodies_bytes)
        call.on_lost = lambda: self._host.cancel(waiting)
        now_ms, forwarder = self._now_ms(), self._forwarder_for(request)
        if forwarder is not None:
            # Without a reference to what waits, which refers to this.
            waiting.elsewhere = partial(forwarder.dequeue, call, now_ms + wait_ms, now_ms + wait_ms + timeout_ms)
        self._host.dequeue(waiting, now_ms, wait_ms)

    def ack(self, call: Call) -> None:
        items = intake.counted(call.request.items, "items", self.limits.request_items)
        ids = [item.id for item in items]
        waiting, ns, timeout_ms = self._waiting(call, idl.AckResponse, ids)
        now_ms, forwarder = self._now_ms(), self._forwarder_for(call.request)
        if forwarder is not None:
            ids = [item_id or 0 for item_id in ids]
            op = lambda at: ops.ack(items[at].lease or 0)  # noqa: E731
            forwarder.follow(waiting, strays.ACK, call.request, ids, op, now_ms + timeout_ms)
        self._host.ack(waiting, items, ns, now_ms, timeout_ms)

    def nack(self, call: Call) -> None:
        items = intake.counted(call.request.items, "items", self.limits.request_items)
        self._settle(call, idl.NackResponse, strays.NACK, [(item.id or 0, self._nack(item)) for item in items])

    def _nack(self, item: Any) -> ops.Op:
        limits, lease = self.limits, item.lease or 0
        try:
            delay_ms = intake.within(item.delay_ms, "delay_ms", 0, limits.delay_max_ms, 0)
            metadata = intake.blob(item.metadata, "metadata", limits.metadata_bytes)
            if item.reason is not None:
                if type(item.reason) is not str:
                    raise Invalid("reason is not UTF-8")
                if len(item.reason.encode("utf-8", "surrogatepass")) > limits.reason_bytes:
                    raise Invalid(f"reason has more than {limits.reason_bytes} bytes")
            if item.release:
                if delay_ms or metadata is not None:
                    raise Invalid("release excludes delay_ms and metadata")
                return ops.release(lease)
        except Invalid as error:
            return ops.refuse(error)
        return ops.nack(lease, delay_ms, metadata)

    def extend(self, call: Call) -> None:
        items = intake.counted(call.request.items, "items", self.limits.request_items)
        found = [(item.id or 0, self._extend(item)) for item in items]
        self._settle(call, idl.ExtendLeaseResponse, strays.EXTEND, found)

    def _extend(self, item: Any) -> ops.Op:
        limits = self.limits
        try:
            lease_ms = intake.within(item.lease_ms, "lease_ms", limits.lease_min_ms, limits.lease_max_ms, 0)
        except Invalid as error:
            return ops.refuse(error)
        return ops.extend(item.lease or 0, lease_ms)

    def _settle(self, call: Call, response: Any, kind: strays.Kind, items: list[tuple[int, ops.Op]]) -> None:
        ids = [item_id for item_id, _ in items]
        waiting, ns, timeout_ms = self._waiting(call, response, ids)
        now_ms, forwarder = self._now_ms(), self._forwarder_for(call.request)
        if forwarder is not None:
            forwarder.follow(waiting, kind, call.request, ids, lambda at: items[at][1], now_ms + timeout_ms)
        self._host.settle(waiting, items, ns, now_ms, timeout_ms)

    def _waiting(self, call: Call, response: Any, ids: list[int]) -> tuple[ItemsCall, str | None, int]:
        """What all requests about items by id have in common: (the call to wait on, namespace, timeout_ms)."""
        request = call.request
        timeout_ms = intake.timeout_ms(request, self.limits)
        intake.nothing_twice(ids)
        ns = getattr(request, "ns", None)
        if ns is not None:
            intake.name(ns, "ns", self.limits)

        def reply(outcomes: list[FoqsError | None]) -> None:
            call.reply(response(answers.item_outcomes(call, outcomes, self._host.counters)))

        waiting = ItemsCall(len(ids), reply)
        waiting.within = call.within
        return waiting, ns, timeout_ms

    def _forwarder_for(self, request: Any) -> Forwarder | None:
        """None when the request has to be answered here."""
        if self._forwarder is None or (request.context is not None and request.context.hops):
            return None
        return self._forwarder

    def _refuse_when_full(self) -> None:
        """Before what has a long answer: answers that nobody reads fill the budget as well as anything."""
        if not self._host.budget.fits(0, ANSWERS_SHARE):
            raise Overloaded("the host's buffers are full", OVERLOADED_RETRY_MS)

    def _refuse_when_draining(self) -> None:
        if self._host.draining:
            raise Unavailable("the host is shutting down")

    # ------------------------------------------------------------------------------------- looking and operating

    def delete(self, call: Call) -> None:
        ids = intake.counted(call.request.ids, "ids", self.limits.request_items)
        self._settle(call, idl.DeleteItemsResponse, strays.DELETE, [(item_id, ops.delete) for item_id in ids])

    def get_item(self, call: Call) -> None:
        item_id = call.request.id
        self._refuse_when_full()
        timeout_ms = intake.timeout_ms(call.request, self.limits)
        if item_id is None:
            raise Invalid("id is missing")
        self._look(call, self._now_ms() + timeout_ms)

    def _look(self, call: Call, deadline_ms: int) -> None:
        now_ms = self._now_ms()
        waiting = LookCall(partial(self._looked, call, deadline_ms))
        self._host.look(call.request.id, waiting, now_ms, max(1, deadline_ms - now_ms))

    def _looked(
        self, call: Call, deadline_ms: int, item: Item | None, body: Body | None, error: FoqsError | None
    ) -> None:
        forwarder = self._forwarder_for(call.request)
        if forwarder is not None and isinstance(error, NotServed):
            forwarder.look(call, partial(self._look, call, deadline_ms), deadline_ms)
            return
        hidden = call.within is not None and item is not None and item.lane.key[0] not in call.within
        if error is not None or item is None or body is None or hidden:
            call.fail(error or NotFound("no such item"))
            return
        leased = item.phase is Phase.LEASED
        delayed = not leased and item.place is Place.TIMER
        state = idl.ItemState.LEASED if leased else idl.ItemState.DELAYED if delayed else idl.ItemState.READY
        until_ms = item.lease_expires_at_ms if leased else 0
        shown = answers.shown(item.lane.key, body, item.attempt, state, until_ms)
        call.reply(idl.GetItemResponse(shown, state))

    def list_items(self, call: Call) -> None:
        request, limits = call.request, self.limits
        key = (intake.name(request.ns, "ns", limits), intake.name(request.topic, "topic", limits))
        limit = intake.within(request.limit, "limit", 1, limits.list_items, 100)
        timeout_ms = intake.timeout_ms(request, limits)
        forwarder = self._forwarder_for(request)
        if forwarder is not None and request.shard is None:
            StrayList(forwarder, call, self._now_ms() + timeout_ms).ask()
            return
        room_bytes = limits.frame_bytes - _REPLY_OVERHEAD_BYTES
        state, cursor, only = request.state or 0, request.cursor, request.shard
        listing = Listing(self._host, key, state, limit, room_bytes, cursor, call, only)
        self._host.list(listing, self._now_ms(), timeout_ms)

    def active_topics(self, call: Call) -> None:
        request, limits = call.request, self.limits
        ns = None if request.ns is None else intake.name(request.ns, "ns", limits)
        limit = intake.within(request.limit, "limit", 1, limits.active_topics, 1_000)
        timeout_ms = intake.timeout_ms(request, limits)
        topics, more = active_topics(self._host, ns, limit, request.cursor, self._address(), call.within)

        def reply(topics: list[Any], more: bool) -> None:
            call.reply(idl.GetActiveTopicsResponse(topics, topics_cursor(topics[-1]) if more else None))

        forwarder = self._forwarder_for(request)
        others = forwarder.others() if forwarder is not None else ()
        gathering = Gathering(1 + len(others), limit, reply)
        gathering.add(topics, more)
        for address in others:
            assert forwarder is not None
            part = idl.GetActiveTopicsRequest(request.ns, limit, request.cursor)
            deadline_ms = self._now_ms() + min(timeout_ms, ANSWER_MS)
            forwarder.send(address, "GetActiveTopics", part, request, deadline_ms, gathering.answered)

    # ------------------------------------------------------------------------------------- routing

    def get_routing(self, call: Call) -> None:
        request, limits = call.request, self.limits
        wait_ms = intake.within(request.wait_ms, "wait_ms", 0, limits.wait_max_ms, 0)
        intake.timeout_ms(request, limits)
        waiting = RoutingCall(request.version, partial(self._answer_routing, call))
        if not wait_ms or self._host.draining or request.version != self._routing().version:
            waiting.answer()
            return
        self._routing_calls[waiting] = None
        call.on_lost = lambda: self._forget_routing(waiting)
        self._host.deadlines.push(self._now_ms() + wait_ms, waiting)
        self._host.alarm(self._now_ms() + wait_ms)

    def routing_changed(self) -> None:
        """Another routing, or the host stops: answers those that wait for one, and routes again what is held."""
        if self._routing_calls:
            version = self._routing().version
            for waiting in [each for each in self._routing_calls if each.version != version or self._host.draining]:
                waiting.answer()
        if self._host.draining:
            self._news.stop()
        if self._forwarder is not None:
            self._forwarder.changed()

    def _answer_routing(self, call: Call, waiting: RoutingCall) -> None:
        self._routing_calls.pop(waiting, None)
        call.on_lost = None
        routing = self._routing()
        shards = [idl.ShardRoute(shard, route.address, route.epoch) for shard, route in sorted(routing.owners.items())]
        slots = list(routing.slots.shards) or None
        call.reply(idl.GetRoutingResponse(routing.version, shards, sorted(routing.hosts.values()), slots))

    def _forget_routing(self, waiting: RoutingCall) -> None:
        """Its caller is gone."""
        waiting.done = True
        self._routing_calls.pop(waiting, None)

    def watch_topics(self, call: Call) -> None:
        request, limits = call.request, self.limits
        self._refuse_when_draining()  # who was told at once would ask again at once
        wait_ms = intake.within(request.wait_ms, "wait_ms", 0, limits.wait_max_ms, 0)
        waiting = WatchCall(request.version or 0, partial(self._answer_watch, call))
        if not wait_ms or request.version is None or not self._news.wait(waiting):
            waiting.answer()
            return
        call.on_lost = lambda: self._news.forget(waiting)
        self._host.deadlines.push(self._now_ms() + wait_ms, waiting)
        self._host.alarm(self._now_ms() + wait_ms)

    def _answer_watch(self, call: Call, waiting: WatchCall) -> None:
        self._news.forget(waiting)
        call.on_lost = None
        news = self._news.after(call.request.version)
        topics = [idl.TopicNews(key[0], key[1], ready) for key, ready in news.topics]
        call.reply(idl.WatchTopicsResponse(news.version, news.whole, topics))

    def give_slot(self, call: Call) -> None:
        slot_moves.answer(self._host, self._routing().slots, self.limits, call)

    def _routing(self) -> Routing:
        if self._forwarder is not None:
            return self._forwarder.routing()
        address = self._address()
        served: Mapping[int, Route] = {shard.number: Route(address, shard.epoch, "") for shard in self._host.serving}
        return make_routing(served, {"": address}, slots=Slots(shards=tuple(self._host.slots)))
