"""Asks the shards of deduplication keys to take keys for redrives, and to free keys of items that do not hold them.

A message may be lost, or arrive late: both sides bear that, since a key is taken and freed by a number (see
`foqs.engine.unique`). The engine asks again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from foqs.buffers.held_keys import Told
from foqs.engine import unique
from foqs.engine.calls import EnqueueCall
from foqs.engine.engine import Engine
from foqs.errors import FoqsError, LostReply, NotServed, item_error
from foqs.idl import idl
from foqs.ids import FOREVER_MS, hash_slot_of
from foqs.peers.forwarded import Ask
from foqs.rows import DedupRow, HeldKey
from foqs.shardmgr.routing import Routing

_ANSWER_MS = 5_000
Key = DedupRow | HeldKey


class KeyChanges:
    """`adopt` is called when a shard served here lacks a slot that the routing gives it."""

    def __init__(self, engine: Engine, routing: Callable[[], Routing], ask: Ask, adopt: Callable[[], None]) -> None:
        self._engine = engine
        self._routing = routing
        self._ask = ask
        self._adopt = adopt

    def tell(self, keys: Sequence[Key], told: Told) -> None:
        """Ask the shards of all keys, here and on other hosts."""
        routing = self._routing()
        slots, call = routing.slots.shards, EnqueueCall(len(keys), told)
        shards: dict[int, list[int]] = defaultdict(list)
        for at, key in enumerate(keys):
            shards[slots[hash_slot_of(key.digest)] if slots else 0].append(at)
        for number, places in shards.items():
            part = [keys[at] for at in places]
            owner = routing.owners.get(number)
            if number in self._engine.state.shards:
                self.here(number, part, partial(call.settled, places))
            elif owner is None:
                call.settled(places, [NotServed()] * len(part))
            else:
                request = idl.ChangeKeysRequest(number, [remembered(key) for key in part])
                self._ask(owner.address, "ChangeKeys", request, _ANSWER_MS, partial(_answered, call, places))

    def here(self, number: int, keys: Sequence[Key], told: Told) -> None:
        """Carry out what a host asks of a shard of this one."""

        def done(outcomes: list[int | FoqsError]) -> None:
            if any(isinstance(outcome, NotServed) for outcome in outcomes):
                self._adopt()
            told(outcomes)

        unique.tell(self._engine.state, number, keys, done)


def _answered(call: EnqueueCall, places: Sequence[int], response: Any, error: FoqsError | None) -> None:
    outcomes = () if response is None else response.outcomes or ()
    if error is not None or len(outcomes) != len(places):
        call.settled(places, [error or LostReply("the answer has not an outcome for each key")] * len(places))
    else:
        call.settled(places, [one.id or 0 if one.error is None else item_error(one.error) for one in outcomes])


def remembered(key: Key) -> Any:
    """Return a key as the contract has it: one to free has no content, and its number in its expiry."""
    if isinstance(key, DedupRow):
        return idl.RememberedKey(*key)
    return idl.RememberedKey(key.digest, None, key.id, FOREVER_MS + key.number)


def key_of(given: Any) -> Key:
    """Return what `remembered` was given."""
    if given.content is None:
        return HeldKey(given.id, given.digest, given.expires_at_ms - FOREVER_MS)
    return DedupRow(given.digest, given.content, given.id, given.expires_at_ms)
