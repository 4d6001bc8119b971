"""Requests that change nothing: items, listings, statistics, explanations, and facts about the host and its cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter
from typing import Any

from foqs import __version__
from foqs.api import responses, validation
from foqs.api.dead_letters import part_of_reason
from foqs.api.host import Host
from foqs.api.unique import ItemOfKey
from foqs.bounds import MOST_LISTED, NAME_BYTES, Limits
from foqs.checks import is_text
from foqs.engine import explain, kept_items, stats
from foqs.engine.calls import LongPoll, LookCall
from foqs.engine.explain import Explanation
from foqs.engine.explain_limits import Ledgers
from foqs.engine.listing import MOST_LOOKED_AT, SEARCH_MS, Listed, Listing, Search, cursor_of, parts_of
from foqs.engine.shard import Shard
from foqs.engine.stats import Coordinated, active_topics, topics_cursor
from foqs.errors import FoqsError, Invalid, NotFound, NotServed
from foqs.figures import ActiveTopic, ThrottleStats, TopicStats, to_struct
from foqs.hooks.protocol import SCRIPT_BYTES
from foqs.hooks.topic_hooks import TopicHooks
from foqs.idl import idl, is_forwarded
from foqs.ids import digest_of, shard_of
from foqs.item import Item, Phase
from foqs.item_filter import ItemFilter
from foqs.limits.bucket import THROTTLE_TOKENS
from foqs.limits.lease_slots import LEASE_SLOTS
from foqs.peers.coordinator import Coordinator
from foqs.peers.forwarded_requests import explained
from foqs.peers.gather import ANSWER_MS, FailingSums, Pages, ThrottleReports, TopicSums, nearest
from foqs.peers.ready_topics import ReadyPublisher
from foqs.policies.entries import Throttle, ThrottleEntry
from foqs.policies.layers import BUILT_IN
from foqs.policies.settings import MOST_BYTES, VALUE_BYTES
from foqs.rows import EndedRow, EndedState, Found, LastFailure
from foqs.rpc.call import Call

FIXED = {"settings_bytes": MOST_BYTES, "settings_value_bytes": VALUE_BYTES, "script_bytes": SCRIPT_BYTES}
"""Limits that no configuration changes: ZooKeeper takes no larger record."""
_LIMITS = {
    name: value
    for name, value in ThrottleStats._field_defaults.items()
    if name in ("setting", *ThrottleEntry.model_fields)
}
"""Figures of a throttle that the settings say, and their values without a throttle."""
_KEPT_MS = 1_000
"""A count adds up all namespaces of all shards, and any client may ask for one."""


class Lookups:
    def __init__(self, host: Host, hooks: TopicHooks, coordinator: Coordinator) -> None:
        self._host = host
        self._hooks = hooks
        self._coordinator = coordinator
        self._items: Mapping[int, int] = {}
        self._counted_ms: int | None = None

    def handlers(self) -> dict[str, Callable[[Call], None]]:
        return {
            "GetItem": self.get_item,
            "ListItems": self.list_items,
            "GetActiveTopics": self.active_topics,
            "GetTopicStats": self.topic_stats,
            "GetThrottles": self.throttles,
            "ListFailing": self.failing,
            "GetServerInfo": self.server_info,
        }

    def get_item(self, call: Call) -> None:
        host = self._host
        host.refuse_when_full()
        timeout_ms = validation.timeout_ms(call.request, host.limits)
        request, deadline_ms = call.request, host.now_ms() + timeout_ms
        if request.dedup_key is None:
            if request.id is None:
                raise Invalid("id is missing")
            if request.ns is not None:
                raise Invalid("give an id, or ns and dedup_key")
            self._look(call, deadline_ms)
        elif request.id is not None:
            raise Invalid("give an id, or ns and dedup_key")
        else:
            ns = validation.name(request.ns, "ns", host.limits)
            key = validation.name(request.dedup_key, "dedup_key", host.limits)
            found = partial(self._found, call, deadline_ms)
            ItemOfKey(host, call, digest_of(ns, key), deadline_ms, attrgetter("item.id"), _found_id, found).find()

    def _found(self, call: Call, deadline_ms: int, item_id: int) -> None:
        call.request.id = item_id
        self._look(call, deadline_ms)

    def _look(self, call: Call, deadline_ms: int) -> None:
        now_ms = self._host.now_ms()
        waiting = LookCall(partial(self._looked, call, deadline_ms))
        self._host.engine.look(call.request.id, waiting, now_ms, max(1, deadline_ms - now_ms))

    def _looked(
        self, call: Call, deadline_ms: int, item: Item | None, found: Found | None, error: FoqsError | None
    ) -> None:
        if isinstance(error, NotServed):
            look_again = partial(self._look, call, deadline_ms)
            if self._host.forwarder.get_item(call, look_again, deadline_ms):
                return
        lane = None if found is None else self._host.engine.lane_of(found)
        hidden = call.within is not None and lane is not None and lane.topic.key[0] not in call.within
        if error is not None and not isinstance(error, NotFound):
            call.fail(error)
        elif found is None or lane is None or hidden:
            call.fail(NotFound(self._host.no_item(call)))
        elif (ended := found.ended) is not None:
            state, failure, stored = idl.ItemState.COMPLETED, None, found.stored
            if ended.state == EndedState.FAILED:
                state, failure, stored = idl.ItemState.FAILED, kept_items.failure_of(ended, stored or b"\0", lane), None
            shown = responses.shown(
                lane.key, found.body, ended.attempt, state, 0, failure, ended.ended_at_ms, found.progress,
                found.last_failure,
            )  # fmt: skip
            shown.result = stored
            call.reply(idl.GetItemResponse(shown, state))
        elif item is None:
            call.fail(NotFound(self._host.no_item(call)))
        else:
            state = responses.state_of(item)
            until_ms = item.lease_expires_at_ms if item.phase is Phase.LEASED else 0
            shown = responses.shown(
                lane.key, found.body, item.attempt, state, until_ms, found.failure, progress=found.progress,
                last_failure=found.last_failure,
            )  # fmt: skip
            call.reply(idl.GetItemResponse(shown, state))

    def list_items(self, call: Call) -> None:
        host, request, limits = self._host, call.request, self._host.limits
        key = host.topic(request)
        limit = validation.within(request.limit, "limit", 1, limits.list_items, 100)
        timeout_ms = validation.timeout_ms(request, limits)
        if tenant := request.fairness_key:
            validation.name(tenant, "fairness_key", limits)
        search = _search(request, limits, host.now_ms(), timeout_ms)
        if host.forwarder.list_items(call, host.now_ms() + timeout_ms, search):
            return
        room_bytes = limits.frame_bytes - responses.REPLY_OVERHEAD_BYTES
        state, cursor, only = request.state or 0, request.cursor, request.shard

        def reply(items: list[Listed], cursor: str | None) -> None:
            looked_at = None if search is None else search.looked_at
            call.reply(idl.ListItemsResponse([responses.shown(*item) for item in items], cursor, looked_at))

        listing = Listing(
            host.engine.state, key, state, limit, room_bytes, cursor, reply, call.fail, only, tenant, search
        )
        host.engine.list(listing, host.now_ms(), timeout_ms)

    def active_topics(self, call: Call) -> None:
        host, request, limits = self._host, call.request, self._host.limits
        ns = None if request.ns is None else validation.name(request.ns, "ns", limits)
        limit = validation.within(request.limit, "limit", 1, limits.active_topics, 1_000)
        timeout_ms = validation.timeout_ms(request, limits)
        pages = Pages(limit)

        def reply(_missing: list[str]) -> None:
            topics, more = pages.page()
            found = [to_struct(topic) for topic in topics]
            call.reply(idl.GetActiveTopicsResponse(found, topics_cursor(topics[-1]) if more else None))

        def found(topics: list[ActiveTopic], more: bool) -> None:
            pages.add(topics, more=more)
            deadline_ms = host.now_ms() + min(timeout_ms, ANSWER_MS)
            part = partial(
                idl.GetActiveTopicsRequest, ns, limit, request.cursor, request.all, request.dead, request.rates
            )
            host.forwarder.ask_others("GetActiveTopics", part, request, deadline_ms, pages.add_answer, reply)

        active_topics(
            host.engine.state, ns, limit, request.cursor, host.address(), call.within, host.now_ms(), found,
            every=bool(request.all), dead=bool(request.dead), rates=bool(request.rates),
        )  # fmt: skip

    def topic_stats(self, call: Call) -> None:
        host, request, limits = self._host, call.request, self._host.limits
        key = ns, name = host.topic(request)
        limit = validation.within(request.limit, "limit", 1, MOST_LISTED, 100)
        if is_forwarded(request):
            limit = MOST_LISTED
        timeout_ms = validation.timeout_ms(request, limits)
        policies = host.engine.state.policies.namespace(ns)
        overruled = policies.overruled(name)
        layers = {
            field: key for field, key in policies.layers(name).items() if key != BUILT_IN and field not in overruled
        }
        now_ms = host.now_ms()

        def done(sums: TopicSums, missing: list[str]) -> None:
            policy = policies.of(name)
            found = sums.stats(limit)._replace(
                paused=policy.paused, closed=policy.closed, policy_layers=layers, missing=tuple(missing),
                overruled=overruled,
            )  # fmt: skip
            call.reply(to_struct(found, policy=policies.document(name)))

        def counted(here: TopicStats) -> None:
            sums = TopicSums(here._replace(hooks=tuple(self._hooks.stats(key))))
            deadline_ms = now_ms + min(timeout_ms, ANSWER_MS)
            part = partial(idl.GetTopicStatsRequest, ns, name)
            host.forwarder.ask_others("GetTopicStats", part, request, deadline_ms, sums.add, partial(done, sums))

        stats.topic_stats(host.engine.state, key, now_ms, counted)

    def failing(self, call: Call) -> None:
        """Raises Invalid."""
        host, request, limits = self._host, call.request, self._host.limits
        ns = validation.name(request.ns, "ns", limits)
        topic = None if request.topic is None else validation.name(request.topic, "topic", limits)
        limit = validation.within(request.limit, "limit", 1, MOST_LISTED, 100)
        now_ms = host.now_ms()
        deadline_ms = now_ms + min(validation.timeout_ms(request, limits), ANSWER_MS)
        here = host.engine.state.topics.failing
        sums = FailingSums(here.of(ns, now_ms, topic), more=topic is None and here.unplaced(now_ms) > 0)

        def done(missing: list[str]) -> None:
            topics, more = sums.topics(limit)
            call.reply(idl.ListFailingResponse([to_struct(one) for one in topics], more, missing))

        part = partial(idl.ListFailingRequest, ns, topic, MOST_LISTED)
        host.forwarder.ask_others("ListFailing", part, request, deadline_ms, sums.add, done)

    def throttles(self, call: Call) -> None:
        """Raises Invalid."""
        host, request, limits = self._host, call.request, self._host.limits
        ns, prefix = validation.name(request.ns, "ns", limits), request.prefix or ""
        if not is_text(prefix) or len(prefix.encode()) > NAME_BYTES:
            raise Invalid(f"prefix is not UTF-8, or has more than {NAME_BYTES} bytes")
        limit = validation.within(request.limit, "limit", 1, MOST_LISTED, 100)
        parts = parts_of(request.cursor, (str,))
        after = "" if parts is None else parts[0]
        deadline_ms = host.now_ms() + min(validation.timeout_ms(request, limits), ANSWER_MS)

        def done(reports: ThrottleReports, missing: list[str]) -> None:
            throttle, found = host.engine.state.policies.namespace(ns).throttle, reports.stats
            names = sorted(found)[:limit]
            rows = [to_struct(_with_limits(found[name], throttle(name))) for name in names]
            cursor = cursor_of(names[-1]) if len(names) == limit else None
            call.reply(idl.GetThrottlesResponse(rows, cursor, missing))

        def counted(here: dict[str, ThrottleStats]) -> None:
            reports = ThrottleReports(here)
            part = partial(idl.GetThrottlesRequest, ns, request.prefix, request.limit, request.cursor)
            host.forwarder.ask_others("GetThrottles", part, request, deadline_ms, reports.add, partial(done, reports))

        coordinator, ledger = self._coordinator, self._coordinator.ledger
        keys = [*coordinator.keys(THROTTLE_TOKENS), *coordinator.keys(LEASE_SLOTS)]
        coordinated = Coordinated(keys, partial(ledger, THROTTLE_TOKENS), partial(ledger, LEASE_SLOTS), host.address())
        stats.throttles_of(host.engine.state, coordinated, ns, prefix, after, limit, counted)

    def server_info(self, call: Call) -> None:
        """Reply the host's version, limits and clock, how many rows its shards have changed and items they hold, and
        the rights of the caller."""
        now_ms = self._host.now_ms()
        rows = {
            shard.number: shard.queue.rows_changed for shard in self._host.engine.state.serving if shard.healthy(now_ms)
        }
        items = self._count(now_ms) if call.request.count_items else None
        limits = {**self._host.limits.as_map(), **FIXED}
        principal, rights = self._host.rights_of(call.request.context) or (None, None)
        keys = None
        if items is not None:
            keys = {shard.number: len(shard.memory.orders.keys) for shard in self._host.engine.state.serving}
        call.reply(idl.GetServerInfoResponse(__version__, limits, rows, items, now_ms, principal, rights, keys))

    def _count(self, now_ms: int) -> Mapping[int, int]:
        if self._counted_ms is None or not 0 <= now_ms - self._counted_ms < _KEPT_MS:
            self._counted_ms = now_ms
            self._items = {shard.number: sum(shard.memory.totals.values()) for shard in self._host.engine.state.serving}
        return self._items


def _found_id(item_id: int) -> Any:
    return idl.GetItemResponse(idl.Item(item_id))


def _with_limits(one: ThrottleStats, throttle: Throttle | None) -> ThrottleStats:
    """Return the figures with the limits of the throttle. They are the same on all hosts."""
    limits = {} if throttle is None else {"setting": throttle.setting, **throttle.options()}
    return one._replace(**{name: limits.get(name, absent) for name, absent in _LIMITS.items()})


class Explain:
    """The answer to an operator's question: why an item is not delivered, or none of a topic."""

    def __init__(self, host: Host, coordinator: Coordinator) -> None:
        self._host = host
        self._ledgers = Ledgers(*[partial(coordinator.ledger, unit) for unit in (THROTTLE_TOKENS, LEASE_SLOTS)])
        self._engine = host.engine
        self._now_ms = host.now_ms
        self._forwarder = host.forwarder

    def handlers(self) -> dict[str, Callable[[Call], None]]:
        return {"ExplainItem": self.explain}

    def explain(self, call: Call) -> None:
        """Raises Invalid, Overloaded."""
        request = call.request
        self._host.refuse_when_full()
        deadline_ms = self._now_ms() + validation.timeout_ms(request, self._host.limits)
        if request.id is None:
            key = self._host.topic(request)

            def found(here: explain.Explanation) -> None:
                answers = [explained(here)]
                unowned = () if is_forwarded(request) else self._forwarder.routing().unowned
                self._forwarder.ask_others(
                    "ExplainItem", partial(idl.ExplainItemRequest, None, *key), request, deadline_ms,
                    lambda _, answer: answers.append(answer),
                    lambda missing: call.reply(nearest(answers, unowned, missing)),
                )  # fmt: skip

            explain.of_topic(self._engine.state, key, self._now_ms(), found, self._ledgers)
        elif request.ns is not None or request.topic is not None:
            raise Invalid("give an id, or ns and topic")  # the rights were checked for ns, not for the item
        else:
            self._item(call, deadline_ms)

    def _item(self, call: Call, deadline_ms: int) -> None:
        item_id, engine, now_ms = call.request.id, self._engine, self._now_ms()
        shard = engine.state.shards.get(shard_of(item_id))
        if shard is not None and engine.state.settles(shard) and not shard.healthy(now_ms):
            self._unread(call, shard)
            return
        waiting = LookCall(partial(self._looked, call, deadline_ms))
        engine.look(item_id, waiting, now_ms, max(1, deadline_ms - now_ms))

    def _looked(
        self, call: Call, deadline_ms: int, item: Item | None, found: Found | None, error: FoqsError | None
    ) -> None:
        item_id, engine = call.request.id, self._engine
        if isinstance(error, NotServed):
            again = partial(self._item, call, deadline_ms)
            if self._forwarder.explain_item(call, again, deadline_ms):
                return
            if is_forwarded(call.request):
                call.fail(error)
            else:
                call.reply(explained(explain.not_served(shard_of(item_id))))
            return
        shard = engine.state.shards.get(shard_of(item_id))
        if found is not None and found.ended is not None:
            self._ended(call, found, found.ended)
        elif item is not None and found is not None and shard is not None:
            self._reply(call, shard, item, found.last_failure)
        elif error is None or isinstance(error, NotFound):
            call.reply(explained(explain.gone(self._host.no_item(call))))
        elif shard is not None and not shard.healthy(self._now_ms()):
            self._unread(call, shard)
        else:
            call.fail(error)

    def _ended(self, call: Call, found: Found, ended: EndedRow) -> None:
        """Reply the state of a kept item: there is no reason to give."""
        lane = self._engine.lane_of(found)
        if lane is None or (call.within is not None and lane.topic.key[0] not in call.within):
            call.reply(explained(explain.gone(self._host.no_item(call))))
        else:
            call.reply(explained(Explanation((), state=ended.state)))

    def _unread(self, call: Call, shard: Shard) -> None:
        """Reply without the item's row: the database does not answer."""
        item = shard.memory.known.get(call.request.id)
        if item is None:
            call.reply(explained(Explanation(explain.of_shard(self._engine.state, shard, self._now_ms()))))
        else:
            self._reply(call, shard, item)

    def _reply(self, call: Call, shard: Shard, item: Item, last: LastFailure | None = None) -> None:
        if call.within is not None and item.lane.topic.key[0] not in call.within:
            call.reply(explained(explain.gone(self._host.no_item(call))))
        else:
            found = explain.of_item(self._engine.state, shard, item, self._now_ms(), last, self._ledgers)
            call.reply(explained(found))


class RoutingMethods:
    """The owners of shards, and the topics that have ready items here: requests that may wait for news.

    `changed` is called when the shards that are served here, the routing, or `quiet` changed."""

    def __init__(self, host: Host, news: ReadyPublisher, quiet: Callable[[], bool]) -> None:
        """`quiet` as in the contract's GetRoutingResponse."""
        self._host = host
        self._engine = host.engine
        self._now_ms = host.now_ms
        self._news = news
        self._forwarder = host.forwarder
        self._quiet = quiet
        self._routing_calls: dict[LongPoll, None] = {}

    def handlers(self) -> dict[str, Callable[[Call], None]]:
        return {
            "GetRouting": self.get_routing,
            "WatchTopics": self.watch_topics,
        }

    def get_routing(self, call: Call) -> None:
        request, limits = call.request, self._host.limits
        wait_ms = validation.within(request.wait_ms, "wait_ms", 0, limits.wait_max_ms, 0)
        waiting = LongPoll(request.version, partial(self._answer_routing, call))
        if not wait_ms or self._engine.state.draining or request.version != self._version():
            waiting.answer()
            return
        self._routing_calls[waiting] = None
        call.on_lost = lambda: self._forget_routing(waiting)
        self._engine.state.deadlines.push(self._now_ms() + wait_ms, waiting)
        self._engine.state.alarm(self._now_ms() + wait_ms)

    def changed(self) -> None:
        """Route held requests. Answer requests that wait for another routing, all of them when the host stops."""
        self._forwarder.changed()
        if self._routing_calls:
            version = self._version()
            for waiting in [
                each for each in self._routing_calls if each.version != version or self._engine.state.draining
            ]:
                waiting.answer()
        if self._engine.state.draining:
            self._news.stop()

    def _answer_routing(self, call: Call, waiting: LongPoll) -> None:
        self._routing_calls.pop(waiting, None)
        routing = self._forwarder.routing()
        shards = [idl.ShardRoute(shard, route.address, route.epoch) for shard, route in sorted(routing.owners.items())]
        slots, quiet = list(routing.slots.shards) or None, self._quiet() or None
        call.reply(idl.GetRoutingResponse(self._version(), shards, sorted(routing.hosts.values()), slots, quiet))

    def _version(self) -> int:
        return self._forwarder.routing().version ^ self._quiet()

    def _forget_routing(self, waiting: LongPoll) -> None:
        """Drop the request: its client has disconnected."""
        waiting.done = True
        self._routing_calls.pop(waiting, None)

    def watch_topics(self, call: Call) -> None:
        request, limits = call.request, self._host.limits
        # With an answer in place of the refusal, the other host would ask again at once.
        self._host.refuse_when_draining()
        wait_ms = validation.within(request.wait_ms, "wait_ms", 0, limits.wait_max_ms, 0)
        waiting = LongPoll(request.version or 0, partial(self._answer_watch, call))
        if not wait_ms or request.version is None or not self._news.wait(waiting):
            waiting.answer()
            return
        call.on_lost = lambda: self._news.forget(waiting)
        self._engine.state.deadlines.push(self._now_ms() + wait_ms, waiting)
        self._engine.state.alarm(self._now_ms() + wait_ms)

    def _answer_watch(self, call: Call, waiting: LongPoll) -> None:
        self._news.forget(waiting)
        news = self._news.after(call.request.version)
        topics = [idl.TopicNews(key[0], key[1], ready) for key, ready in news.topics]
        call.reply(idl.WatchTopicsResponse(news.version, news.whole, topics))


def _search(request: Any, limits: Limits, now_ms: int, timeout_ms: int) -> Search | None:
    """Return the search of a ListItems with a filter. Raises Invalid."""
    given = request.filter
    most_rows = validation.within(request.most_looked_at, "most_looked_at", 1, MOST_LOOKED_AT, MOST_LOOKED_AT)
    if given is None:
        return None
    least, most = given.min_priority, given.max_priority
    if least is not None and most is not None and least > most:
        raise Invalid(f"min_priority is {least}, more than max_priority, {most}")
    validation.headers(given.headers, limits)
    contains = given.failure_contains
    wanted = ItemFilter(
        least, most,
        validation.moment(given.enqueued_before_ms, "enqueued_before_ms", now_ms),
        validation.moment(given.enqueued_after_ms, "enqueued_after_ms", now_ms),
        given.headers or {},
        None if contains is None else part_of_reason(contains, "failure_contains"),
        None if given.order_key is None else validation.new_name(given.order_key, "order_key", NAME_BYTES),
        None if given.batch is None else validation.batch_id(given.batch, "batch"),
    )  # fmt: skip
    return Search(wanted, most_rows, now_ms + min(SEARCH_MS, timeout_ms // 2))
