"""The owners of shards, and the topics that have ready items here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from foqs.api import validation
from foqs.bounds import Limits
from foqs.engine.calls import RoutingCall
from foqs.engine.engine import Engine
from foqs.idl import idl
from foqs.peers.forwarder import Forwarder, LoneForwarder
from foqs.peers.ready_topics import ReadyPublisher, WatchCall
from foqs.rpc.call import Call


class RoutingMethods:
    """`changed` is called when the shards that are served here, or the routing, changed."""

    def __init__(
        self,
        engine: Engine,
        limits: Limits,
        now_ms: Callable[[], int],
        news: ReadyPublisher,
        forwarder: Forwarder | LoneForwarder,
    ) -> None:
        self.limits = limits
        self._engine = engine
        self._now_ms = now_ms
        self._news = news
        self._forwarder = forwarder
        self._routing_calls: dict[RoutingCall, None] = {}

    def handlers(self) -> dict[str, Callable[[Call], None]]:
        return {
            "GetRouting": self.get_routing,
            "WatchTopics": self.watch_topics,
        }

    def get_routing(self, call: Call) -> None:
        request, limits = call.request, self.limits
        wait_ms = validation.within(request.wait_ms, "wait_ms", 0, limits.wait_max_ms, 0)
        validation.timeout_ms(request, limits)
        waiting = RoutingCall(request.version, partial(self._answer_routing, call))
        if not wait_ms or self._engine.draining or request.version != self._forwarder.routing().version:
            waiting.answer()
            return
        self._routing_calls[waiting] = None
        call.on_lost = lambda: self._forget_routing(waiting)
        self._engine.deadlines.push(self._now_ms() + wait_ms, waiting)
        self._engine.alarm(self._now_ms() + wait_ms)

    def changed(self) -> None:
        """Route held requests. Answer those that wait for another routing, all of them when the host stops."""
        self._forwarder.changed()
        if self._routing_calls:
            version = self._forwarder.routing().version
            for waiting in [each for each in self._routing_calls if each.version != version or self._engine.draining]:
                waiting.answer()
        if self._engine.draining:
            self._news.stop()

    def _answer_routing(self, call: Call, waiting: RoutingCall) -> None:
        self._routing_calls.pop(waiting, None)
        call.on_lost = None
        routing = self._forwarder.routing()
        shards = [idl.ShardRoute(shard, route.address, route.epoch) for shard, route in sorted(routing.owners.items())]
        slots = list(routing.slots.shards) or None
        call.reply(idl.GetRoutingResponse(routing.version, shards, sorted(routing.hosts.values()), slots))

    def _forget_routing(self, waiting: RoutingCall) -> None:
        """Drop the request: its client has disconnected."""
        waiting.done = True
        self._routing_calls.pop(waiting, None)

    def watch_topics(self, call: Call) -> None:
        request, limits = call.request, self.limits
        # Answered at once, the other host would ask again at once.
        validation.refuse_when_draining(self._engine.draining)
        wait_ms = validation.within(request.wait_ms, "wait_ms", 0, limits.wait_max_ms, 0)
        waiting = WatchCall(request.version or 0, partial(self._answer_watch, call))
        if not wait_ms or request.version is None or not self._news.wait(waiting):
            waiting.answer()
            return
        call.on_lost = lambda: self._news.forget(waiting)
        self._engine.deadlines.push(self._now_ms() + wait_ms, waiting)
        self._engine.alarm(self._now_ms() + wait_ms)

    def _answer_watch(self, call: Call, waiting: WatchCall) -> None:
        self._news.forget(waiting)
        call.on_lost = None
        news = self._news.after(call.request.version)
        topics = [idl.TopicNews(key[0], key[1], ready) for key, ready in news.topics]
        call.reply(idl.WatchTopicsResponse(news.version, news.whole, topics))
