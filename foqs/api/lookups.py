"""Look-ups and listings: requests that change nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from foqs.api import responses, validation
from foqs.bounds import Limits
from foqs.engine.calls import LookCall
from foqs.engine.engine import Engine
from foqs.engine.listing import (
    ANSWERS_SHARE,
    OVERLOADED_RETRY_MS,
    Listed,
    Listing,
    active_topics,
    count,
    topics_cursor,
)
from foqs.engine.stats import MOST_TENANTS, MostReady, WorkerLeases, tenants_of, workers_of
from foqs.errors import FoqsError, Invalid, NotFound, NotServed
from foqs.hooks.topic_hooks import TopicHooks
from foqs.idl import idl, is_forwarded
from foqs.item import Item, Phase, Place
from foqs.peers.forwarder import Forwarder, LoneForwarder
from foqs.peers.gather import ANSWER_MS, Counts, Pages, TopicSums, hook_stats
from foqs.policies.layers import BUILT_IN
from foqs.rows import Found
from foqs.rpc.call import Call


class Lookups:
    """`address` is this host's, as clients know it."""

    def __init__(
        self,
        engine: Engine,
        limits: Limits,
        now_ms: Callable[[], int],
        address: Callable[[], str],
        forwarder: Forwarder | LoneForwarder,
        hooks: TopicHooks,
    ) -> None:
        self.limits = limits
        self._hooks = hooks
        self._engine = engine
        self._now_ms = now_ms
        self._address = address
        self._forwarder = forwarder

    def handlers(self) -> dict[str, Callable[[Call], None]]:
        return {
            "GetItem": self.get_item,
            "ListItems": self.list_items,
            "GetActiveTopics": self.active_topics,
            "GetTopicStats": self.topic_stats,
        }

    def get_item(self, call: Call) -> None:
        item_id = call.request.id
        validation.refuse_when_full(self._engine.budget, ANSWERS_SHARE, OVERLOADED_RETRY_MS)
        timeout_ms = validation.timeout_ms(call.request, self.limits)
        if item_id is None:
            raise Invalid("id is missing")
        self._look(call, self._now_ms() + timeout_ms)

    def _look(self, call: Call, deadline_ms: int) -> None:
        now_ms = self._now_ms()
        waiting = LookCall(partial(self._looked, call, deadline_ms))
        self._engine.look(call.request.id, waiting, now_ms, max(1, deadline_ms - now_ms))

    def _looked(
        self, call: Call, deadline_ms: int, item: Item | None, found: Found | None, error: FoqsError | None
    ) -> None:
        if isinstance(error, NotServed):
            look_again = partial(self._look, call, deadline_ms)
            if self._forwarder.get_item(call, look_again, deadline_ms):
                return
        hidden = call.within is not None and item is not None and item.lane.topic.key[0] not in call.within
        if error is not None or item is None or found is None or hidden:
            call.fail(error or NotFound("no such item"))
            return
        leased = item.phase is Phase.LEASED
        delayed = not leased and item.place is Place.TIMER
        state = idl.ItemState.LEASED if leased else idl.ItemState.DELAYED if delayed else idl.ItemState.READY
        until_ms = item.lease_expires_at_ms if leased else 0
        shown = responses.shown(item.lane.key, found.body, item.attempt, state, until_ms, found.failure)
        call.reply(idl.GetItemResponse(shown, state))

    def list_items(self, call: Call) -> None:
        request, limits = call.request, self.limits
        key = (validation.name(request.ns, "ns", limits), validation.name(request.topic, "topic", limits))
        limit = validation.within(request.limit, "limit", 1, limits.list_items, 100)
        timeout_ms = validation.timeout_ms(request, limits)
        if self._forwarder.list_items(call, self._now_ms() + timeout_ms):
            return
        room_bytes = limits.frame_bytes - responses.REPLY_OVERHEAD_BYTES
        state, cursor, only = request.state or 0, request.cursor, request.shard

        def reply(items: list[Listed], cursor: str | None) -> None:
            call.reply(idl.ListItemsResponse([responses.shown(*item) for item in items], cursor))

        listing = Listing(self._engine, key, state, limit, room_bytes, cursor, reply, call.fail, only)
        self._engine.list(listing, self._now_ms(), timeout_ms)

    def active_topics(self, call: Call) -> None:
        request, limits = call.request, self.limits
        ns = None if request.ns is None else validation.name(request.ns, "ns", limits)
        limit = validation.within(request.limit, "limit", 1, limits.active_topics, 1_000)
        timeout_ms = validation.timeout_ms(request, limits)

        pages = Pages(limit)

        def reply(_missing: list[str]) -> None:
            topics, more = pages.page()
            call.reply(idl.GetActiveTopicsResponse(topics, topics_cursor(topics[-1]) if more else None))

        def found(topics: list[Any], more: bool) -> None:
            pages.add(topics, more=more)
            deadline_ms = self._now_ms() + min(timeout_ms, ANSWER_MS)
            part = partial(idl.GetActiveTopicsRequest, ns, limit, request.cursor, request.all)
            self._forwarder.ask_others("GetActiveTopics", part, request, deadline_ms, pages.add_answer, reply)

        every = bool(request.all)
        active_topics(
            self._engine, ns, limit, request.cursor, self._address(), call.within, self._now_ms(), found, every=every
        )

    def topic_stats(self, call: Call) -> None:
        request, limits = call.request, self.limits
        ns, name = validation.name(request.ns, "ns", limits), validation.name(request.topic, "topic", limits)
        limit = validation.within(request.limit, "limit", 1, MOST_TENANTS, 100)
        if is_forwarded(request):
            limit = MOST_TENANTS
        timeout_ms = validation.timeout_ms(request, limits)
        policies = self._engine.policies.namespace(ns)
        overruled = policies.overruled(name)
        layers = {
            field: key for field, key in policies.layers(name).items() if key != BUILT_IN and field not in overruled
        }
        now_ms = self._now_ms()

        def done(sums: TopicSums, missing: list[str]) -> None:
            policy = policies.of(name)
            document = policies.document(name)
            tenants, more = sums.tenants(limit)
            call.reply(
                idl.GetTopicStatsResponse(
                    *sums.counts,
                    policy.paused,
                    policy.closed,
                    document,
                    layers,
                    tenants,
                    sums.workers(),
                    sums.hooks(),
                    missing,
                    more,
                    overruled,
                )
            )

        def counted(here: Counts, workers: list[WorkerLeases], tenants: MostReady) -> None:
            hung = engine.hung.of(key, now_ms)
            stats = [
                idl.WorkerStats(one.worker, one.held, max(0, now_ms - one.oldest_given_ms), hung.pop(one.worker, 0))
                for one in workers
            ] + [idl.WorkerStats(worker, 0, 0, handlers) for worker, handlers in hung.items()]
            hooks = [hook_stats(*one) for one in self._hooks.counts(key)]
            sums, deadline_ms = TopicSums(here, stats, tenants, hooks), now_ms + min(timeout_ms, ANSWER_MS)
            part = partial(idl.GetTopicStatsRequest, ns, name)
            self._forwarder.ask_others("GetTopicStats", part, request, deadline_ms, sums.add, partial(done, sums))

        engine, key = self._engine, (ns, name)

        def with_workers(here: Counts, workers: list[WorkerLeases]) -> None:
            tenants_of(engine, key, partial(counted, here, workers))

        count(engine, key, lambda here: workers_of(engine, key, partial(with_workers, here)))
