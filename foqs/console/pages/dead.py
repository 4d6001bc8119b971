"""Dead letters: the topics that have them, and the groups of one topic, which return to their topics or are deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

from foqs.bounds import MOST_PACE
from foqs.checks import counted, printable
from foqs.client import FailureCause, FailureFilter, FailureGroup, ItemState, Redriven
from foqs.console.action import Action, Done, Form, Question
from foqs.console.dead_letters import CALL_MS, DELETE, REDRIVE, STEPS, Selection, groups_of, stay
from foqs.console.fields import pace as pace_of
from foqs.console.view import Page, View
from foqs.errors import Conflict, FoqsError, Invalid, NotFound, Unavailable
from foqs.ids import parse_id

__all__ = ["ACTIONS", "PAGE", "STEPS"]

PAGE_TOPICS = 200
MOST_GROUPS = 200
_MOST_JOBS = 3
_MOST_LINKS = 20
CAUSES = tuple(cause.name.lower() for cause in FailureCause)


async def load(view: View) -> Mapping[str, Any]:
    chosen = Selection.of(view.request.query_params)
    common = {"chosen": chosen, "causes": CAUSES, "most_pace": MOST_PACE, "groups": None, "topics": []}
    if chosen.topic:
        return {**common, **await _groups(view, chosen)}
    page = await view.client.topics_page(
        all_states=True, dead=True, page_topics=PAGE_TOPICS, cursor=view.asked("cursor") or None
    )
    return {**common, "topics": page.topics, "cursor": page.cursor, "is_first": not view.asked("cursor")}


async def _groups(view: View, chosen: Selection) -> Mapping[str, Any]:
    """The groups fit the cause and the tenant: the service does not group by the other conditions."""
    chosen.filter()  # raises Invalid
    stats, answer = await asyncio.gather(
        view.client.topic_stats(chosen.topic, tenants=1), view.allowed(groups_of(view, chosen))
    )
    entry = stats.policy.get("dead")
    elsewhere = entry and entry["topic"]
    values = {
        "elsewhere": elsewhere if elsewhere != chosen.topic else "", "stats": stats,
        "jobs": [job for job in view.jobs.of(view.session) if _is_about(job, view.ns, chosen.topic)][:_MOST_JOBS],
        "allowed": answer is not None, "groups": [], "missing": (), "items": 0, "hidden": 0, "left_out": 0,
        "error": "", "as_of_ms": 0,
    }  # fmt: skip
    if answer is None:
        return values
    found, as_of_ms = answer
    if isinstance(found, FoqsError):
        return values | {"error": found.message}
    shown = sorted((one for one in found.groups if _may_show(chosen, one)), key=lambda one: -one.count)
    return values | {
        "groups": shown[:MOST_GROUPS],
        "left_out": len(shown[MOST_GROUPS:]),
        "hidden": len(found.groups) - len(shown),
        "items": sum(one.count for one in shown),
        "missing": found.missing,
        "as_of_ms": 0 if as_of_ms == view.now_ms else as_of_ms,
    }


def _is_about(job: Any, ns: str, topic: str) -> bool:
    return job.ns == ns and job.kind in STEPS and job.given.get("topic") == topic


def _may_show(chosen: Selection, group: FailureGroup) -> bool:
    """A group without the text in its sample may have it in other items."""
    return chosen.fingerprint in ("", group.fingerprint) and chosen.reason in group.sample_reason


# ------------------------------------------------------------------------------------------ redrive


async def _try_one(view: View, form: Form) -> Done:
    found = await _redrive(view, form, count=1)
    stays = stay(found)
    if not found.at_most:
        raise NotFound(f"no dead letter returned: none matches, or none may return now. {stays}")
    return _redriven(view, found, f"{_range(found)} redriven from {form.get('topic')}", stays)


async def _redrive_one(view: View, form: Form) -> Done:
    """Redrive a chosen dead letter, and no other one."""
    item_id = parse_id(form.get("id", ""))
    item = await view.client.get_item(item_id)
    failure = item.failure
    if failure is None or item.ns != view.ns or item.state == ItemState.FAILED:
        raise Invalid(f"item {item_id} is no dead letter of namespace {printable(view.ns)}")
    redrive = partial(
        view.client.redrive, item.topic, 1, filter=FailureFilter(failure.fingerprint, item_id=item_id),
        timeout_ms=CALL_MS,
    )  # fmt: skip
    found = await redrive(dry_run=True)
    if found.at_most and item_id not in found.items:
        raise Unavailable("a host of an earlier version cannot redrive one chosen item: update the service")
    if found.at_most:
        found = await redrive()
    if not found.at_most:
        raise Conflict(f"item {item_id} was not redriven: {stay(found) or 'it is no dead letter now'}")
    return _redriven(view, found, f"{_range(found)} redriven from {item.topic}", stay(found))


def _redriven(view: View, found: Redriven, text: str, stays: str) -> Done:
    """Return the outcome with links to the pages of the items, which show their states from then on."""
    named = [*found.items.items()][:_MOST_LINKS]
    links = [(f"item {item_id} → topic {topic}", view.url(f"/items/{item_id}")) for item_id, topic in named]
    first = f"the first {len(named)}" if 0 < len(named) < found.at_least else ""
    said = "; ".join(filter(None, (text, stays, first)))
    return Done(f"{said}{':' if links else '.'}", well=not stays, links=links)


async def _ask_redrive(view: View, form: Form) -> Question | None:
    if form.get("confirmed") == "yes":
        return None
    chosen, pace, each = Selection.of(form), pace_of(form.get("pace", "")), bool(form.get("each"))
    found = await _redrive(view, form, each=each, dry_run=True)
    stays = stay(found)
    if not found.at_most:
        raise NotFound(f"no dead letter of {chosen.topic} would return{chosen.words}. {stays}")
    items = f"{'at least ' if found.more else ''}{counted(found.at_most, 'item')}"
    text = f"{items} would return{_where(form)}, ready at once, with attempt 0 and under their ids."
    if pace and not each:
        text += f" At {pace:,} a second it takes about {_seconds(found.at_most / pace)}."
    text += f" {stays}." if stays else ""
    title = f"Redrive {'one item of each group' if each else 'dead letters'} of {chosen.topic}{chosen.words}?"
    return Question(title, text, f"Redrive {items}")


async def _start_redrive(view: View, form: Form) -> Done:
    if form.get("each"):
        found = await _redrive(view, form, each=True)
        stays = stay(found)
        if found.more:
            stays = f"{stays}{'; ' if stays else ''}the request ended before it had looked at all dead letters"
        return _redriven(view, found, f"{_range(found)} redriven from {form.get('topic')}, one of each group", stays)
    chosen, pace = Selection.of(form), pace_of(form.get("pace", ""))
    found = await _redrive(view, form, dry_run=True)
    return _begin(view, REDRIVE, form, "Redrive", None if found.more else found.at_most, pace, chosen)


async def _redrive(view: View, form: Form, *, count: int = 0, each: bool = False, dry_run: bool = False) -> Redriven:
    chosen = Selection.of(form)
    return await view.client.redrive(
        chosen.topic, count, filter=chosen.filter(_until_ms(view)), per_fingerprint=1 if each else None,
        to_topic=form.get("to_topic") or None, dry_run=dry_run, timeout_ms=CALL_MS,
    )  # fmt: skip


def _until_ms(view: View) -> int:
    """The end of the times at which items died that a change is about: that of the form, with its millisecond."""
    return view.now_ms + 1


def _where(form: Form) -> str:
    to_topic = form.get("to_topic")
    return f" to the topic {printable(to_topic)}" if to_topic else " to the topics that they came from"


def _range(found: Redriven) -> str:
    if found.at_least == found.at_most:
        return counted(found.at_least, "item")
    return f"Between {found.at_least:,} and {found.at_most:,} items"


def _seconds(seconds: float) -> str:
    if seconds < 120:
        return counted(max(1, round(seconds)), "second")
    return counted(round(seconds / 60), "minute")


# ------------------------------------------------------------------------------------------ delete


async def _ask_delete(view: View, form: Form) -> Question | None:
    chosen = Selection.of(form)
    if form.get("typed") == chosen.topic:
        return None
    number, more = await _count(view, form)
    items = f"{'at least ' if more else ''}{counted(number, 'item')}"
    return Question(
        f"Delete dead letters of {chosen.topic}{chosen.words}?",
        f"About {items} would be deleted for good. Items that a consumer has leased stay, "
        "and so do items without a failure.",
        f"Delete {items}",
        chosen.topic,
    )


async def _start_delete(view: View, form: Form) -> Done:
    chosen = Selection.of(form)
    number, more = await _count(view, form)
    return _begin(view, DELETE, form, "Delete", None if more else number, 0, chosen)


async def _count(view: View, form: Form) -> tuple[int, bool]:
    """Return the number of dead letters that match, and whether there are more. Some of them may not return."""
    found = await _redrive(view, {**form, "to_topic": ""}, dry_run=True)
    refused = sum([one.items for one in found.refused])
    return found.at_most + found.skipped_duplicate + refused, found.more


def _begin(view: View, kind: str, form: Form, verb: str, total: int | None, pace: int, chosen: Selection) -> Done:
    to_topic = form.get("to_topic") if kind == REDRIVE else None
    given = {**chosen.fields(), "before_ms": _until_ms(view), "to_topic": to_topic or None}
    what = f"{verb} dead letters of {chosen.topic}{chosen.words}{f', to the topic {to_topic}' if to_topic else ''}"
    job = view.jobs.begin(view.session, kind, given, ns=view.ns, what=what, pace=pace, total=total)
    return Done(f"Job {job.id} began: {printable(what)}.", links=[("How far it is", view.url("/jobs"))])


PAGE = Page("/dead", "Dead letters", "dead.html", load, key="d")
ACTIONS = (
    Action("/dead/try", _try_one),
    Action("/dead/one", _redrive_one),
    Action("/dead/redrive", _start_redrive, _ask_redrive),
    Action("/dead/delete", _start_delete, _ask_delete),
)
