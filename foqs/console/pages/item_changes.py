"""Changes of items: of one, or of the rows that a user chose."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from foqs.bounds import YEAR_MS
from foqs.checks import counted, printable
from foqs.client import AsyncClient, ChangedItems, Delivery, Duplicate, Item, ItemState
from foqs.client.item_copies import copy_key, job_of
from foqs.console.action import Action, Done, Form, Question
from foqs.console.fields import duration_ms, whole
from foqs.console.view import View
from foqs.errors import Conflict, FoqsError, Invalid, NotFound
from foqs.ids import parse_id
from foqs.page.words import duration

_HOLD_MS = 60_000
"""No consumer gets the item for this time: more than the copy and the delete take, with their repetitions."""


def _ids(form: Form) -> list[int]:
    """Return the chosen ids. Raises Invalid without one."""
    ids = [parse_id(text) for text in dict.fromkeys(form.get("id", "").split())]
    if not ids:
        raise Invalid("no item is chosen: check the box of at least one row")
    return ids


async def _run_now(view: View, form: Form) -> Done:
    return await _change(view, _ids(form), 0, None)


async def _place(view: View, form: Form) -> Done:
    ids, delay, priority = _ids(form), form.get("delay", "").strip(), form.get("priority", "").strip()
    if not delay and not priority:
        raise Invalid("give a delay, a priority, or both")
    delay_ms = duration_ms("Delay", delay) if delay else None
    if delay_ms is not None and delay_ms > YEAR_MS:
        raise Invalid("Delay: at most a year")
    return await _change(view, ids, delay_ms, whole("Priority", priority) if priority else None)


async def _change(view: View, ids: Sequence[int], delay_ms: int | None, priority: int | None) -> Done:
    done = ChangedItems(len(ids)).plus(await view.client.change(ids, delay_ms=delay_ms, priority=priority))
    parts = []
    if delay_ms is not None:
        parts.append(f"not before {duration(delay_ms)} from now" if delay_ms else "ready now")
    if priority is not None:
        parts.append(f"priority {priority}")
    text = f"{counted(done.changed, 'item')} changed: {', '.join(parts)}."
    if done.taken:
        text += f" {counted(done.taken, 'item')} skipped: a consumer took them, or they have ended."
    return _done(text, done.failed, "changed", done.error, well=not done.taken)


async def _ask_delete(view: View, form: Form) -> Question:
    ids = _ids(form)
    what = f"item {ids[0]}" if len(ids) == 1 else counted(len(ids), "item")
    it = "it" if len(ids) == 1 else "them"
    text = f"{'The item is' if len(ids) == 1 else 'The items are'} lost, with payload and history, in any state: also "
    text += f"while a consumer works on {it}. No command brings {it} back."
    return Question(f"Delete {what}?", text, f"Delete {what}")


async def _delete(view: View, form: Form) -> Done:
    ids = _ids(form)
    deleted = gone = 0
    errors: list[FoqsError] = []
    for outcome in await view.client.delete_items(ids):
        if outcome is None:
            deleted += 1
        elif isinstance(outcome, NotFound):
            gone += 1
        else:
            errors.append(outcome)
    text = f"{counted(deleted, 'item')} deleted."
    if gone:
        text += f" {counted(gone, 'item', 'was', 'were')} gone before."
    to = view.url("/items", topic=form["topic"]) if form.get("topic") and not errors else ""
    return _done(text, len(errors), "deleted", errors[0] if errors else None, to=to)


def _done(text: str, failed: int, verb: str, error: FoqsError | None, *, to: str = "", well: bool = True) -> Done:
    if error is not None:
        text += f" {counted(failed, 'item')} not {verb}; the first error: {error.message}"
    return Done(text, to, well and error is None)


async def _ask_move(view: View, form: Form) -> Question:
    (item_id, *_), target = _ids(form), form.get("to", "")
    item = await view.client.get_item(item_id)
    _check(item, view.ns, target)
    text = (
        f"This is not one step. The item is postponed by {duration(_HOLD_MS)}, so that no consumer gets it; a "
        f"copy is stored in {printable(target)}; then the item is deleted. If the console stops in between, the item "
        f"is ready again after that time: repeat the move, which stores no second copy. The copy has a new id and "
        f"attempt 0. It keeps payload, headers, metadata, priority, time, keys, rules and the end of the TTL. It loses "
        f"its dedup key, checkpoint, progress, log and failures."
    )
    if item.failure is not None:
        text += " A dead letter also loses the keys that it had in its topic: a redrive keeps them."
    return Question(f"Move item {item_id} from {printable(item.topic)} to {printable(target)}?", text, "Move the item")


async def _move(view: View, form: Form) -> Done:
    (item_id, *_), target = _ids(form), form.get("to", "")
    item = await view.client.get_item(item_id)
    copy = await _moved(view.client, item, target, view.now_ms)
    where = f"from {printable(item.topic)} to {printable(target)}"
    return Done(f"1 item moved {where}: item {item_id} is item {copy} now.", view.url(f"/items/{copy}"))


def _check(item: Item, namespace: str, target: str) -> None:
    """Raises Invalid and Conflict for an item that cannot be moved there."""
    if not target:
        raise Invalid("Topic: give the topic to which the item moves")
    if item.ns != namespace:
        raise Invalid(f"the item is in the namespace {item.ns}: open its page there")
    if item.topic == target:
        raise Invalid("the item is in that topic")
    if item.delivery == Delivery.AT_MOST_ONCE:
        raise Invalid("an at-most-once item might be delivered twice: `foqs move` moves ready ones")
    if item.state == ItemState.LEASED:
        raise Conflict("a consumer works on the item: `foqs release` ends leases")
    if item.state == ItemState.BEHIND:
        raise Conflict("the item waits for an earlier one of its order key")
    if item.state not in (ItemState.READY, ItemState.DELAYED):
        raise Conflict("the item has ended, and its topic keeps it")


async def _moved(client: AsyncClient, item: Item, target: str, now_ms: int) -> int:
    """Move an item as `foqs move` moves ready ones: store a copy, then delete the item. Return the id of the copy.

    The item is postponed in between, so a consumer gets either the item or its copy. The copy has the dedup key of
    `foqs move`, so it is stored once, however often the move is repeated. Raises Invalid and Conflict for an item that
    cannot be moved, and what the calls raise: the item is at its place again then, or it is postponed for `_HOLD_MS`
    if a copy may be stored."""
    _check(item, client.namespace, target)
    (error,) = await client.change([item.id], deliver_after_ms=max(item.deliver_after_ms, now_ms + _HOLD_MS))
    if error is not None:
        try:
            raise error
        finally:
            del error
    try:
        # A consumer may have given it other metadata since it was read.
        held = await client.get_item(item.id)
        copy = await _copy(client, held, target, item.deliver_after_ms if item.state == ItemState.DELAYED else None)
    except FoqsError as failed:
        if failed.outcome_known:
            with suppress(FoqsError):
                await client.change([item.id], deliver_after_ms=item.deliver_after_ms)
        raise
    (error,) = await client.delete_items([item.id])
    if error is not None and not isinstance(error, NotFound):
        raise Conflict(f"the copy is stored, with the id {int(copy)}, and the item may remain: repeat the move")
    return int(copy)


async def _copy(client: AsyncClient, item: Item, target: str, deliver_after_ms: int | None) -> int:
    """Raises Conflict if an earlier move stored the copy, which has ended."""
    job = job_of("moved", client.namespace, item.topic, client.namespace, target, "true")
    copy = await client.enqueue(
        target,
        item.payload,
        metadata=item.metadata,
        headers=item.headers,
        priority=item.priority,
        deliver_after_ms=deliver_after_ms,
        dedup_key=copy_key("move", job, item.id, item.enqueued_at_ms),
        fairness_key=item.fairness_key or None,
        throttle_keys=item.throttle_keys or None,
        expires_at_ms=item.expires_at_ms,
        rules=item.rules,
    )
    if isinstance(copy, Duplicate):
        with suppress(NotFound):
            there = await client.get_item(copy)
            if (there.ns, there.topic) == (client.namespace, target):
                return copy
        raise Conflict("an earlier move stored a copy, which has ended: delete the item if it is not needed")
    return copy


ACTIONS = (
    Action("/items/run-now", _run_now),
    Action("/items/place", _place),
    Action("/items/delete", _delete, _ask_delete),
    Action("/items/move", _move, _ask_move),
)
