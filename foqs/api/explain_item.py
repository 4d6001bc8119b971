"""ExplainItem: an operator asks why an item is not delivered, or none of a topic."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from foqs.api import validation
from foqs.bounds import Limits
from foqs.engine import explain
from foqs.engine.calls import LookCall
from foqs.engine.engine import Engine
from foqs.engine.explain import Explanation
from foqs.engine.listing import ANSWERS_SHARE, OVERLOADED_RETRY_MS
from foqs.engine.shard import Shard
from foqs.errors import FoqsError, Invalid, NotFound, NotServed
from foqs.idl import idl, is_forwarded
from foqs.ids import shard_of
from foqs.item import Item
from foqs.peers.forwarded_requests import nearest, response
from foqs.peers.forwarder import Forwarder, LoneForwarder
from foqs.rows import Found
from foqs.rpc.call import Call


class Explain:
    """`limits` is called for each request."""

    def __init__(
        self,
        engine: Engine,
        limits: Callable[[], Limits],
        now_ms: Callable[[], int],
        forwarder: Forwarder | LoneForwarder,
    ) -> None:
        self._engine = engine
        self._limits = limits
        self._now_ms = now_ms
        self._forwarder = forwarder

    def explain(self, call: Call) -> None:
        """Raises Invalid, Overloaded."""
        request, limits = call.request, self._limits()
        validation.refuse_when_full(self._engine.budget, ANSWERS_SHARE, OVERLOADED_RETRY_MS)
        deadline_ms = self._now_ms() + validation.timeout_ms(request, limits)
        if request.id is None:
            key = (validation.name(request.ns, "ns", limits), validation.name(request.topic, "topic", limits))

            def explained(here: explain.Explanation) -> None:
                answers = [response(here)]
                unowned = () if is_forwarded(request) else self._forwarder.routing().unowned
                self._forwarder.ask_others(
                    "ExplainItem", partial(idl.ExplainItemRequest, None, *key), request, deadline_ms,
                    lambda _, answer: answers.append(answer),
                    lambda missing: call.reply(nearest(answers, unowned, missing)),
                )  # fmt: skip

            explain.of_topic(self._engine, key, self._now_ms(), explained)
        elif request.ns is not None or request.topic is not None:
            raise Invalid("give an id, or ns and topic")  # the rights were checked for ns, not for the item
        else:
            self._item(call, deadline_ms)

    def _item(self, call: Call, deadline_ms: int) -> None:
        item_id, engine, now_ms = call.request.id, self._engine, self._now_ms()
        shard = engine.shards.get(shard_of(item_id))
        if shard is not None and engine.settles(shard) and not shard.healthy(now_ms):
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
                call.reply(response(explain.not_served(shard_of(item_id))))
            return
        shard = engine.shards.get(shard_of(item_id))
        if item is not None and found is not None and shard is not None:
            self._reply(call, shard, item)
        elif error is None or isinstance(error, NotFound):
            call.reply(response(explain.GONE))
        elif shard is not None and not shard.healthy(self._now_ms()):
            self._unread(call, shard)
        else:
            call.fail(error)

    def _unread(self, call: Call, shard: Shard) -> None:
        """Reply without the item's row: the database does not answer."""
        item = shard.known.get(call.request.id)
        if item is None:
            call.reply(response(Explanation(explain.of_shard(self._engine, shard, self._now_ms()))))
        else:
            self._reply(call, shard, item)

    def _reply(self, call: Call, shard: Shard, item: Item) -> None:
        if call.within is not None and item.lane.topic.key[0] not in call.within:
            call.reply(response(explain.GONE))
        else:
            call.reply(response(explain.of_item(self._engine, shard, item, self._now_ms())))
