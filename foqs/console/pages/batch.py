"""One batch: its state, how its members have ended, and what its end has stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foqs.client import Batch, BatchState
from foqs.console.action import Action, Done, Form, Question
from foqs.console.drawing import batch_state_name
from foqs.console.view import Page, View
from foqs.errors import NotFound
from foqs.ids import parse_id
from foqs.page.words import ago, duration, moment

_COLOURS: Mapping[str, str] = {"completed": "leased", "failed": "dead"}
"""Of the parts of the bar, as the styles name them; other ends are grey."""
_OTHER = "kept"
_BADGES: Mapping[int, str] = {
    BatchState.SUCCEEDED: "ok", BatchState.ENDED: "bad", BatchState.EXPIRED: "warn", BatchState.CANCELLED: "warn",
}  # fmt: skip


async def load(view: View) -> Mapping[str, Any]:
    number = parse_id(view.request.path_params["id"], "the id of a batch")
    try:
        batch = await view.client.get_batch(number)
    except NotFound:
        raise NotFound(
            f"the namespace {view.ns} has no batch {number}: it never had one, or the batch has ended, and the "
            "service keeps ended ones for limits.batch_keep_ms"
        ) from None
    counts = batch.counts
    ends = [(name, count) for name, count in counts._asdict().items() if name != "members" and count]
    figures = dict.fromkeys([*_COLOURS.values(), _OTHER], 0)
    for name, count in ends:
        figures[_COLOURS.get(name, _OTHER)] += count
    return {
        "batch": batch, "state": batch_state_name(batch.state),
        "words": state_words(batch, view.now_ms), "badge": _BADGES.get(batch.state, ""),
        "ends": [(name.replace("_", " "), count, _COLOURS.get(name, _OTHER)) for name, count in ends],
        "figures": figures,
        "live": max(0, counts.members - counts.ended),
        "members_url": view.url("/items", batch=batch.id),
    }  # fmt: skip


def state_words(batch: Batch, now_ms: int) -> str:
    """Return a sentence about the state of a batch, with its time."""
    if batch.ended_at_ms is not None:
        at = f"at {moment(batch.ended_at_ms)} ({ago(now_ms - batch.ended_at_ms)})"
        match batch.state:
            case BatchState.SUCCEEDED:
                return f"All of its members were completed. It ended {at}."
            case BatchState.EXPIRED:
                return f"It ended by its TTL {at}. Members that were left live on."
            case BatchState.CANCELLED:
                return f"It was cancelled, and ended {at}."
        return f"Some of its members were not completed. It ended {at}."
    left = duration(max(0, batch.expires_at_ms - now_ms))
    match batch.state:
        case BatchState.OPEN:
            return f"It does not end before it is closed, or by its TTL in {left}."
        case BatchState.CLOSED:
            return f"It ends with its last member, or by its TTL in {left}."
    return "It was cancelled, and ends when consumers have ended the members that they hold."


async def _close(view: View, form: Form) -> Done:
    number = parse_id(form.get("id", ""), "the id of a batch")
    await view.client.close_batch(number)
    return Done(f"Batch {number} is closed: it ends with its last member.", view.url(f"/batch/{number}"))


async def _ask_cancel(view: View, form: Form) -> Question:
    number = parse_id(form.get("id", ""), "the id of a batch")
    text = (
        "Members that no consumer has are removed, and no command brings them back. The other ones end as they end. "
        "Batches that are members are cancelled, too. The item for any end is stored then, not that for success."
    )
    return Question(f"Cancel batch {number}?", text, f"Cancel batch {number}")


async def _cancel(view: View, form: Form) -> Done:
    number = parse_id(form.get("id", ""), "the id of a batch")
    await view.client.cancel_batch(number)
    return Done(f"Batch {number} is cancelled.", view.url(f"/batch/{number}"))


PAGE = Page("/batch/{id}", "Batch", "batch.html", load, home="/items")
ACTIONS = (Action("/batch/close", _close), Action("/batch/cancel", _cancel, _ask_cancel))
