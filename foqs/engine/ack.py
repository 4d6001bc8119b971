"""Acks, nacks, extensions and deletes of a request: finds each item and has its op decided."""

from __future__ import annotations

from collections.abc import Sequence

from foqs.engine import failure_hooks, item_ops
from foqs.engine.pending import ItemsCall
from foqs.engine.shard import Shard
from foqs.engine.state import State
from foqs.errors import FoqsError, NotFound, NotServed, Overloaded, Unavailable
from foqs.ids import NUMBER_BITS, shard_of
from foqs.item import Cause, Change, Item, Phase, Place, To
from foqs.rows import Found
from foqs.shardmgr.lifecycle import ShardState

# Members of enums, bound once for the hot path: a look-up costs the same time as the comparison.
_LEASED, _SERVING, _GONE, _ACK = Phase.LEASED, ShardState.SERVING, To.GONE, Cause.ACK
_RETRY_MS = 100


def ack_all(
    state: State, call: ItemsCall, ids: Sequence[int], leases: Sequence[int], ns: str | None, now_ms: int
) -> None:
    """Ack each of `ids` with its lease. The common case, a live lease that nothing else touches, is decided right here;
    the rest by `item_ops.ack`."""
    shards, items, most = state.shards, call.items, state.config.host.pending_rows
    if call.within is not None:  # and so no namespace is named
        for at, item_id in enumerate(ids):
            operate(state, call, at, item_id, item_ops.ack(leases[at]), None, now_ms)
        return
    for at, (item_id, lease) in enumerate(zip(ids, leases, strict=True)):
        shard = shards.get(item_id >> NUMBER_BITS)
        item = shard.known.get(item_id) if shard is not None else None
        if (
            shard is None
            or item is None
            or item.phase is not _LEASED
            or item.lease != lease
            or item.change is not None
            or item.in_flight is not None
            or (ns is not None and item.lane.topic.key[0] != ns)
            or shard.state is not _SERVING
            or len(shard.changes) >= most
        ):
            operate(state, call, at, item_id, item_ops.ack(lease), ns, now_ms)
            continue
        item.change = change = Change(item, _GONE, _ACK, (call, at))  # `Item.queue`, of which all is checked above
        items[at] = item
        shard.changes.append(change)
        state.dirty[shard] = None
    state.wake()


def operate(state: State, call: ItemsCall, at: int, item_id: int, op: item_ops.Op, ns: str | None, now_ms: int) -> None:
    """Decides `op` on one item, after a look-up when it is not in memory."""
    shard = state.shards.get(shard_of(item_id))
    if shard is None:
        _outcome(state, call, at, state.absent())
    elif not state.settles(shard):
        _outcome(state, call, at, NotServed())
    elif shard.full:
        _outcome(state, call, at, Overloaded("too much waits for the item's shard", _RETRY_MS))
    else:
        item = shard.known.get(item_id)
        if item is not None:
            _decide(state, call, at, shard, item, op, ns, now_ms)
        else:
            _look_first(state, call, at, shard, item_id, op, ns)
        state.touch(shard)


def _decide(
    state: State, call: ItemsCall, at: int, shard: Shard, item: Item, op: item_ops.Op, ns: str | None, now_ms: int
) -> None:
    found = item.lane.topic.key[0]
    if (ns is not None and found != ns) or (call.within is not None and found not in call.within):
        _outcome(state, call, at, NotFound("no such item"))
        return
    if item.place is Place.READY and shard.in_takeover_grace(now_ms):
        # The previous owner may still have the item in memory, and could lease it after it was removed here.
        retry_after_ms = shard.config.confirm_ms
        _outcome(state, call, at, Unavailable("the item's shard was just taken from another host", retry_after_ms))
        return
    if isinstance(op, item_ops.Failing) and op.decision is None and failure_hooks.asks_first(shard, item, op.lease):
        go_on = lambda decision: operate(state, call, at, item.id, op.with_decision(decision), ns, state.now_ms)  # noqa: E731
        failure_hooks.ask_first(state, call, at, shard, item, op.cause, op.reason, go_on)
        return
    call.items[at] = item
    verdict = op(shard, item, (call, at), now_ms)
    if verdict is not False:
        _outcome(state, call, at, None if verdict is True else verdict)


def _look_first(
    state: State, call: ItemsCall, at: int, shard: Shard, item_id: int, op: item_ops.Op, ns: str | None
) -> None:
    def look(item: Item | None, _: Found | None, error: FoqsError | None) -> None:
        if call.done:
            return
        if error is not None:
            _outcome(state, call, at, error)
        elif item is None:
            _outcome(state, call, at, NotFound("no such item"))
        else:
            _decide(state, call, at, shard, item, op, ns, state.now_ms)

    shard.looks.add(item_id, look)


def _outcome(state: State, call: ItemsCall, at: int, error: FoqsError | None) -> None:
    call.settled(at, error)
