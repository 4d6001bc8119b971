"""Items with deduplication keys whose shards other hosts serve. Each may be sent more than once: the host that has
stored it answers with its id again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from foqs.buffers.pending_dedup import Keyed
from foqs.engine import dedup
from foqs.engine.calls import EnqueueCall
from foqs.errors import FoqsError, Unavailable
from foqs.idl import idl
from foqs.ids import hash_slot_of
from foqs.peers.enqueue import outcomes_of
from foqs.peers.exchange import Exchange
from foqs.peers.forwarded import HERE, Forwarded, Target
from foqs.second_answer import KEYED, stored

_NOT_SERVED = "no host serves the shard of the dedup_key: it is disabled, or no host can open its database"
_NOT_SERVED_RETRY_MS = 1_000


class ForwardedDedupEnqueue(Forwarded):
    """An entry is an index of the request. While the rows of a slot are being moved, the owner of the slot's shard
    refuses its keys, although the routing stays the same: so that host is asked again."""

    __slots__ = ("_adopt", "_call", "_items")
    rerouted = False

    def __init__(
        self,
        exchange: Exchange,
        call: EnqueueCall,
        items: Sequence[Keyed],
        request: Any,
        deadline_ms: int,
        adopt: Callable[[], None],
    ) -> None:
        """`adopt` is called when a shard served here lacks a slot that the routing gives it."""
        super().__init__(exchange, "Enqueue", KEYED, request, deadline_ms)
        self._call = call
        self._items = {one.at: one for one in items}
        self._astray = list(self._items)
        self._adopt = adopt
        call.unsent.append(self)

    @property
    def done(self) -> bool:
        return self._call.done

    def target(self, at: int) -> Target:
        exchange, routing = self._exchange, self._exchange.routing()
        slots = routing.slots.shards
        number = slots[hash_slot_of(self._items[at].dedup.digest)] if slots else 0
        if exchange.serves(number):
            return HERE
        owner = routing.owners.get(number)
        if owner is None and not exchange.expects_owner(number):
            return Unavailable(_NOT_SERVED, _NOT_SERVED_RETRY_MS)
        return None if owner is None or owner.host == exchange.host_id else owner

    def part(self, group: Sequence[int]) -> Any:
        return idl.EnqueueRequest(self.origin.ns, [self.origin.items[at] for at in group])

    def outcomes(self, response: Any) -> Sequence[int | FoqsError] | None:
        return outcomes_of(response)

    def settle(self, at: int, outcome: int | FoqsError) -> None:
        if isinstance(outcome, int):
            outcome = stored(outcome, at in self._doubtful)
        self._call.settled([at], [outcome])

    def here(self, group: list[int]) -> Sequence[int]:
        engine, now_ms = self._exchange.engine, self._exchange.now_ms()
        away: list[Keyed] = []
        slots = self._exchange.routing().slots.shards
        for number, part in dedup.by_shard(slots, [self._items[at] for at in group]).items():
            sure = [one for one in part if one.at not in self._doubtful]
            away += dedup.place_taken(engine, self._call, number, sure, now_ms)
            for one in part:
                if one.at in self._doubtful:
                    away += dedup.place_taken(engine, self._call_of(one), number, [one], now_ms)
        if away:  # rows of their slots are not all here, or the shard is about to take the slots
            self._adopt()
        return [one.at for one in away]

    def _call_of(self, one: Keyed) -> EnqueueCall:
        """Return a call for an item that another host may have stored: this host's refusal does not settle it."""

        def reply(outcomes: list[int | FoqsError]) -> None:
            if not self.done:
                self.merge([one.at], {}, [outcomes[one.at]])

        call = EnqueueCall(one.at + 1, reply)
        call.left = 1
        return call
