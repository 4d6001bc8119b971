"""Changes of all items that match a search, and of all items of a topic: each is a job."""

from __future__ import annotations

from foqs.bounds import YEAR_MS
from foqs.checks import counted, printable
from foqs.client import ItemState
from foqs.console.action import Action, Done, Form, Question
from foqs.console.bulk import CHANGE, DELETE, STEPS, Bulk, Counted, count
from foqs.console.fields import duration_ms, pace, whole
from foqs.console.item_query import FIELDS, ItemQuery
from foqs.console.view import View
from foqs.errors import Invalid, NotFound
from foqs.page.words import duration

__all__ = ["ACTIONS", "STEPS"]

PURGED = ("topic", "state", "tenant", "keyless")
"""Fields of the form that purges a topic."""


def _query(form: Form, names: tuple[str, ...] = FIELDS) -> ItemQuery:
    """Return the search of a form. Raises Invalid if it is not about the items of a topic."""
    query = ItemQuery({name: form.get(name, "") if name in names else "" for name in FIELDS})
    if not query.fields["topic"] or query.names_one:
        raise Invalid("a change of all items that match needs a topic, and no id and no dedup key")
    return query


async def _found(view: View, bulk: Bulk, words: str) -> Counted:
    """Raises NotFound if no item would change, and Forbidden without the right to search."""
    found = await count(view.client, bulk)
    if not found.items and not found.more:
        stay = f" {_leased(found)} stay." if found.leased else ""
        raise NotFound(f"nothing to do for {words}: there is none, or each is so already.{stay}")
    return found


def _number(found: Counted) -> str:
    """Return how many items would change, as far as one search shows it."""
    if found.more:
        return f"at least {counted(found.items, 'item')}, among the first {found.looked_at:,} looked at"
    return counted(found.items, "item")


def _leased(found: Counted) -> str:
    return f"{'At least ' if found.more else ''}{counted(found.leased, 'leased item')}"


def _begin(view: View, kind: str, bulk: Bulk, found: Counted, what: str, form: Form) -> Done:
    total = None if found.more else found.items
    job = view.jobs.begin(
        view.session, kind, bulk._asdict(), ns=view.ns, what=what, pace=pace(form.get("pace", "")), total=total
    )
    return Done(f"Job {job.id} began: {printable(what)}.", view.url("/jobs"))


# ------------------------------------------------------------------------------------------ delay, priority, run now


def _change(view: View, form: Form, now: bool) -> tuple[Bulk, str]:
    """Return the change of a form, and its words. Raises Invalid."""
    query = _query(form)
    pace(form.get("pace", ""))
    bulk = Bulk.of(query.fields["topic"], query.wanted(view.now_ms), view.now_ms)._replace(now=now)
    if now:
        what = f"Run now {query.words}"
    else:
        bulk, parts = _placed(bulk, form)
        what = f"Change {query.words}: {', '.join(parts)}"
    if not bulk.changed_states:
        state = ItemState(bulk.state or 0).name.lower()
        raise Invalid(f"the search is for items in state {state}: {_ONLY_NOW if bulk.now else _ONLY}")
    return bulk, what


_ONLY_NOW = "only delayed ones can become ready"
_ONLY = "only ready and delayed ones get another time or priority"


def _placed(bulk: Bulk, form: Form) -> tuple[Bulk, list[str]]:
    delay, priority = form.get("new_delay", "").strip(), form.get("new_priority", "").strip()
    if not delay and not priority:
        raise Invalid("give a delay, a priority, or both")
    parts = []
    if delay:
        delay_ms = duration_ms("Delay", delay)
        if delay_ms > YEAR_MS:
            raise Invalid("Delay: at most a year")
        at_ms = bulk.begun_ms + delay_ms
        bulk = bulk._replace(deliver_after_ms=at_ms) if delay_ms else bulk._replace(now=True)
        parts.append(f"not before {duration(delay_ms)} from the begin of the job" if delay_ms else "ready now")
    if priority:
        number = whole("New priority", priority)
        if not -(1 << 31) <= number < 1 << 31:
            raise Invalid("New priority: it has 32 bits, -2,147,483,648 to 2,147,483,647")
        bulk = bulk._replace(priority=number)
        parts.append(f"priority {number}")
    return bulk, parts


async def _ask_change(view: View, form: Form, *, now: bool = False) -> Question | None:
    bulk, what = _change(view, form, now)
    if form.get("confirmed") == "yes":
        return None
    found = await _found(view, bulk, _query(form).words)
    text = f"That is {_number(found)}."
    if found.leased:
        text += f" {_leased(found)} stay: consumers work on them."
    text += " Items that are enqueued later stay as they are."
    return Question(f"{what}?", text, f"{'Run' if now else 'Change'} {_button(found)}{' now' if now else ''}")


def _button(found: Counted) -> str:
    return "all that match" if found.more else counted(found.items, "item")


async def _start_change(view: View, form: Form, *, now: bool = False) -> Done:
    bulk, what = _change(view, form, now)
    return _begin(view, CHANGE, bulk, await _found(view, bulk, _query(form).words), what, form)


async def _ask_now(view: View, form: Form) -> Question | None:
    return await _ask_change(view, form, now=True)


async def _start_now(view: View, form: Form) -> Done:
    return await _start_change(view, form, now=True)


# ------------------------------------------------------------------------------------------ delete, purge


def _delete(view: View, form: Form, names: tuple[str, ...]) -> tuple[Bulk, str]:
    """Return the delete of a form, and the words for its items. Raises Invalid."""
    query, leased = _query(form, names), bool(form.get("leased"))
    pace(form.get("pace", ""))
    if leased and query.fields["state"]:
        raise Invalid("leased items, too: that is for items in any state; the form names one")
    bulk = Bulk.of(query.fields["topic"], query.wanted(view.now_ms), view.now_ms)
    return bulk._replace(delete=True, leased=leased), f"{query.words}{', leased ones too' if leased else ''}"


async def _ask_delete(view: View, form: Form, names: tuple[str, ...] = FIELDS) -> Question | None:
    bulk, words = _delete(view, form, names)
    if form.get("typed") == bulk.topic:
        return None
    found = await _found(view, bulk, words)
    text = (
        f"That is {_number(found)}. They are lost, with payload and history: no command brings them back. An item that "
        "a consumer takes while the job deletes it is lost, too. "
    )
    if ItemState.LEASED in bulk.changed_states:
        text += "Consumers work on the leased ones. "
    elif bulk.state is None:
        text += f"{_leased(found)} stay. " if found.leased else "Leased items stay. "
    return Question(
        f"Delete {words}?", f"{text}Items that are enqueued later stay.", f"Delete {_button(found)}", bulk.topic
    )


async def _start_delete(view: View, form: Form, names: tuple[str, ...] = FIELDS) -> Done:
    bulk, words = _delete(view, form, names)
    return _begin(view, DELETE, bulk, await _found(view, bulk, words), f"Delete {words}", form)


async def _ask_purge(view: View, form: Form) -> Question | None:
    return await _ask_delete(view, form, PURGED)


async def _start_purge(view: View, form: Form) -> Done:
    return await _start_delete(view, form, PURGED)


ACTIONS = (
    Action("/items/all/place", _start_change, _ask_change),
    Action("/items/all/run-now", _start_now, _ask_now),
    Action("/items/all/delete", _start_delete, _ask_delete),
    Action("/topics/purge", _start_purge, _ask_purge),
)
