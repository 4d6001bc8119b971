"""The rows that a change writes.

A change leaves the table the item is in when the transaction is built (every earlier outcome is known by then) and
enters another one, or none.
"""

from __future__ import annotations

from foqs.item import Change, Place, To
from foqs.rows import Batch, ReadyRow, TimerRow

# Members of enums, bound once for the hot path.
_KEPT, _GONE, _READY, _DELAYED, _MOVED = To.KEPT, To.GONE, To.READY, To.DELAYED, To.MOVED
_IN_READY = Place.READY


def emit(change: Change, transaction: Batch) -> None:
    """Adds the rows of this change to `transaction`."""
    item, to = change.item, change.to
    if to is _KEPT:
        transaction.expiry_gone.append(item.id)
        transaction.expiry_new.append((change.due_ms, item.id))
        return
    lane = item.lane.number
    assert lane is not None, "a stored item's lane has a number"
    if item.unindexed:
        pass  # it has no row that it could leave
    elif item.place is _IN_READY:
        transaction.ready_gone.append((lane, item.priority, item.deliver_after_ms, item.id))
    else:
        transaction.timer_gone.append(item.id)
    if to is _GONE:
        if item.lane.dead:
            transaction.failure_gone.append(item.id)
        transaction.item_gone.append(item.id)
        if item.expires_at_ms:
            transaction.expiry_gone.append(item.id)
        return
    if change.metadata is not None:
        transaction.metadata_new.append((item.id, change.metadata))
    if to is _READY:
        _return(change, lane, transaction)
    elif to is _MOVED:
        _move(change, transaction)
    elif to is _DELAYED:
        transaction.deliver_after_new.append((item.id, change.due_ms))
        transaction.timer_new.append(TimerRow(change.due_ms, item.id, lane, 0, change.attempt, 0, item.bytes))
    else:
        change.due_ms = change.due_ms or item.lease_expires_at_ms
        change.lease, change.attempt = item.lease, item.attempt
        transaction.timer_new.append(
            TimerRow(change.due_ms, item.id, lane, item.lease, item.attempt, item.lease_ms, item.bytes)
        )


def _return(change: Change, lane: int, transaction: Batch) -> None:
    """The rows of an item that is ready again, at its place or at another one."""
    item = change.item
    if change.due_ms:
        transaction.deliver_after_new.append((item.id, change.due_ms))
    at_ms = change.due_ms or item.deliver_after_ms
    transaction.ready_new.append(
        ReadyRow(lane, item.priority, at_ms, item.id, change.attempt, change.lease, item.bytes)
    )


def _move(change: Change, transaction: Batch) -> None:
    """The rows of an item in its new lane."""
    item, move, target = change.item, change.move, change.target
    assert move is not None, "a move says where to"
    assert target is not None, "the transaction has the lane"
    assert target.number is not None, "it has the lane's row"
    at_ms, expires_at_ms = move.deliver_after_ms, move.expires_at_ms
    transaction.moved.append((item.id, target.number, at_ms, expires_at_ms))
    transaction.ready_new.append(
        ReadyRow(target.number, item.priority, at_ms, item.id, change.attempt, change.lease, item.bytes)
    )
    if item.expires_at_ms:
        transaction.expiry_gone.append(item.id)
    if expires_at_ms:
        transaction.expiry_new.append((expires_at_ms, item.id))
    if item.lane.dead:
        transaction.failure_gone.append(item.id)
    if move.failure is not None:
        transaction.failure_new.append(move.failure._replace(lane=target.number))
