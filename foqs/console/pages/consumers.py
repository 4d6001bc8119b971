"""The consumers of a namespace: their requests for items, their leases, and the handlers that hang."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from foqs.checks import counted, printable
from foqs.client import ConsumerStats, FoqsError, Forbidden, Invalid, Unauthenticated
from foqs.console.action import Action, Done, Form, Question
from foqs.console.view import Page, View
from foqs.page.words import duration

PAGE_CONSUMERS = 200
MOST_TOPICS = 8
"""Topics that a row names."""
UNITS = {"s": ("seconds", 1_000), "min": ("minutes", 60_000), "h": ("hours", 3_600_000)}
_LONGEST_MS = 1 << 62


async def load(view: View) -> Mapping[str, Any]:
    sent = {"topic": view.asked("topic"), "worker": view.asked("worker")} if view.asked("worker") else None
    return await _shown(view, sent)


async def _shown(view: View, sent: Form | None = None, error: FoqsError | None = None) -> dict[str, Any]:
    """Return the values of the page. `sent`: fields of the form about leases, which may have an error."""
    topic = view.asked("topic")
    found = await view.allowed(view.client.consumers(topic or None))
    fields = {name: (sent or {}).get(name, "") for name in ("topic", "worker", "age", "unit", "reason")}
    fields["topic"] = fields["topic"] or topic
    return {
        "topic": topic, "found": found, "form": fields, "opened": sent is not None, "error": error, "units": UNITS,
        "most": PAGE_CONSUMERS, "most_topics": MOST_TOPICS,
    }  # fmt: skip


class Leases(NamedTuple):
    """Which leases of a topic are to end: of all workers if `worker` is "", of any age if `older_than_ms` is None."""

    topic: str
    worker: str
    older_than_ms: int | None

    @classmethod
    def of(cls, form: Form) -> Leases:
        """Raises Invalid."""
        topic, worker, age = form.get("topic", ""), form.get("worker", ""), form.get("age", "").strip()
        if not topic:
            raise Invalid("topic: name the topic whose leases are to end")
        older_than_ms = None
        if age:
            unit_ms = UNITS.get(form.get("unit", ""), UNITS["s"])[1]
            try:
                older_than_ms = round(float(age) * unit_ms)
            except (ValueError, OverflowError):
                raise Invalid(f"held for longer than: give a number, not {printable(age)}") from None
            if not 0 <= older_than_ms < _LONGEST_MS:
                raise Invalid(f"held for longer than: give a number of 0 or more, not {printable(age)}")
        return cls(topic, worker, older_than_ms)

    def __str__(self) -> str:
        whose = f" of worker {printable(self.worker)}" if self.worker else ""
        age = "" if self.older_than_ms is None else f", given more than {duration(self.older_than_ms)} ago"
        return f"leases{whose} in topic {printable(self.topic)}{age}"


async def _ask(view: View, form: Form) -> Question | None:
    try:
        wanted = Leases.of(form)
    except Invalid:
        return None  # the page shows it with the form
    found = await view.client.consumers(wanted.topic)
    rows = [one for one in found.consumers if one.worker == wanted.worker or not wanted.worker]
    text = (
        f"{_held(rows, wanted)} The leases end now as if by time: the items are delivered again, and at-most-once "
        "items are removed. The attempts count, but not as failures of workers: the items' last failure says that an "
        "operator ended the lease. A worker that still runs learns it at its next extension or ack; until "
        "then two workers may work on one item."
    )
    # All leases of a topic: the work of every worker begins again.
    typed = wanted.topic if not wanted.worker and not wanted.older_than_ms else ""
    return Question(f"End {wanted}?", text, "End the leases", typed)


def _held(rows: list[ConsumerStats], wanted: Leases) -> str:
    held = sum(one.held for one in rows)
    if not held:
        return "No lease is known now."
    who = f"Worker {printable(wanted.worker)} holds" if wanted.worker else f"{counted(len(rows), 'consumer')} hold"
    oldest = duration(max(one.oldest_lease_ms for one in rows))
    age = "" if wanted.older_than_ms is None else " Only leases of the given age end."
    return f"{who} {counted(held, 'item')} of the topic now, the oldest for {oldest}.{age}"


async def _release(view: View, form: Form) -> Done | Mapping[str, Any]:
    try:
        wanted = Leases.of(form)
        released, missing = await view.client.release_leases(
            wanted.topic,
            worker=wanted.worker or None,
            held_longer_than_ms=wanted.older_than_ms,
            reason=form.get("reason", "").strip() or None,
        )
    except (Unauthenticated, Forbidden):
        raise
    except FoqsError as wrong:
        return await _shown(view, form, wrong)
    text = f"{counted(released, 'lease')} ended: {wanted}."
    if missing:
        text += f" These hosts did not answer in time, and leases of their shards may remain: {', '.join(missing)}."
    return Done(text, to=view.url("/consumers", topic=wanted.topic), well=not missing)


PAGE = Page("/consumers", "Consumers", "consumers.html", load, key="c")
ACTIONS = (Action("/consumers/release", _release, _ask, page=PAGE),)
