"""Which dead letters a page shows or changes, their groups, and the steps of the jobs that redrive or delete them."""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic
from typing import Any, NamedTuple, cast

from foqs.checks import counted
from foqs.client import AsyncClient, FailureCause, FailureFilter, Failures, Item, ItemFilter, ItemState, Redriven
from foqs.console.jobs import Job, Stepped
from foqs.console.view import View
from foqs.errors import FoqsError, Invalid, NotFound, OutcomeUnknown, Overloaded, Unavailable
from foqs.travel import bare

CALL_MS = 4_500
"""A request that changes something and cannot be repeated must end before the console's client gives it up, after
5 s."""
REDRIVE, DELETE = "redrive", "delete-dead"
"""The kinds of jobs."""
COSTLY_S = 0.25
"""Groups that take this long, in seconds, are kept for refreshes."""
_KEEP = 40
"""The time that they are kept, in multiples of the seconds that they took."""


class Selection(NamedTuple):
    """The fields of a form, or of a query, that select dead letters of `topic`; "": no condition. `cause` is the name
    of a FailureCause. `tenant` None: no condition; "": items without a fairness key."""

    topic: str
    cause: str = ""
    fingerprint: str = ""
    reason: str = ""
    tenant: str | None = None
    origin: str = ""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Selection:
        tenant = "" if given.get("no_tenant") else given.get("tenant") or None
        topic, cause, fingerprint, reason, origin = [
            given.get(name) or "" for name in ("topic", "cause", "fingerprint", "reason", "origin")
        ]
        return cls(topic, cause, fingerprint, reason, tenant, origin)

    def fields(self) -> dict[str, str]:
        """Return the fields that have a value."""
        fields = self._asdict() | {"no_tenant": "1" if self.tenant == "" else ""}
        return {name: value for name, value in fields.items() if value}

    @property
    def failure_cause(self) -> FailureCause | None:
        """Raises Invalid."""
        try:
            return FailureCause[self.cause.upper()] if self.cause else None
        except KeyError:
            raise Invalid(f"cause is {self.cause!r}, which this console does not know") from None

    def filter(self, before_ms: int | None = None) -> FailureFilter:
        """Return the filter of items that died before `before_ms`. Raises Invalid."""
        return FailureFilter(
            self.fingerprint or None, self.failure_cause, self.reason or None, before_ms,
            origin_topic=self.origin or None, fairness_key=self.tenant,
        )  # fmt: skip

    def group(self, cause: str, fingerprint: str) -> Selection:
        return self._replace(cause=cause, fingerprint=fingerprint)

    @property
    def words(self) -> str:
        """Return the conditions as the end of a sentence about dead letters."""
        said = [
            self.cause and f"with the cause {self.cause}",
            self.fingerprint and f"with the fingerprint {self.fingerprint}",
            self.reason and f"whose reason has {self.reason!r}",
            self.tenant and f"of the tenant {self.tenant!r}",
            "without a fairness key" if self.tenant == "" else "",
            self.origin and f"from the topic {self.origin}",
        ]
        return "".join([f", {one}" for one in said if one])


async def groups_of(view: View, chosen: Selection) -> tuple[Failures | FoqsError, int]:
    """Return the groups, or why there are none, and their time. The hosts read each dead letter for them. So a page
    that refreshes itself shows the groups of a large topic for a while."""
    key = ("groups", view.ns, chosen.topic, chosen.cause, chosen.tenant)
    begun_s = monotonic()
    until_s, kept = view.session.kept.get(key, (0.0, None))
    if kept is not None and view.refreshes and begun_s < until_s:
        return cast(tuple[Failures | FoqsError, int], kept)
    answer: Failures | FoqsError
    try:
        answer = await view.client.list_failures(
            chosen.topic, cause=chosen.failure_cause, fairness_key=chosen.tenant, timeout_ms=CALL_MS
        )
    except (Unavailable, Overloaded) as error:
        answer = bare(error)
    took_s = monotonic() - begun_s
    keep_s = took_s * _KEEP if took_s >= COSTLY_S else 0.0
    view.session.kept = {key: (begun_s + keep_s, (answer, view.now_ms))}
    return answer, view.now_ms


def matches(wanted: FailureFilter, item: Item) -> bool:
    """Return True if a listed item is a dead letter that the filter selects, by the fields that a Selection sets."""
    failure = item.failure
    return (
        failure is not None
        and wanted.fingerprint in (None, failure.fingerprint)
        and wanted.cause in (None, failure.cause)
        and (wanted.reason_contains is None or wanted.reason_contains in failure.reason)
        and (wanted.died_before_ms is None or failure.died_at_ms < wanted.died_before_ms)
        and wanted.origin_topic in (None, failure.topic)
        and wanted.fairness_key in (None, failure.fairness_key)
    )


def stay(found: Redriven) -> str:
    """Return what stays, and why; "" if nothing does."""
    said = [
        found.skipped_leased and counted(found.skipped_leased, "item", "stays, which a consumer has leased",
                                         "stay, which consumers have leased"),
        found.skipped_duplicate and counted(found.skipped_duplicate, "item", "stays, whose dedup_key another item has",
                                            "stay, whose dedup_key another item has"),
        *[f"{counted(one.items, 'dead letter', 'stays', 'stay')}: {one.reason}" for one in found.refused],
        found.missing_shards
        and f"not searched to their end: shards {', '.join(map(str, found.missing_shards))}; continue later",
    ]  # fmt: skip
    return "; ".join([one for one in said if one])


async def redrive_step(client: AsyncClient, job: Job, most: int) -> Stepped:
    """Return dead letters that died before the job began: one that fails again is not redriven again."""
    given = job.given
    found = await client.redrive(
        given["topic"], most, filter=Selection.of(given).filter(given["before_ms"]), to_topic=given.get("to_topic"),
        timeout_ms=CALL_MS,
    )  # fmt: skip
    if found.more and not found.at_most:
        raise Unavailable(
            "the time of a request ended before it found a dead letter that may return: continue the job later"
        )
    failed = bool(found.refused or found.missing_shards)
    return Stepped(found.at_least, found.at_most, found.more, stay(found), failed)


async def delete_step(client: AsyncClient, job: Job, most: int) -> Stepped:
    """Delete the matching items of the next page. A job that continues begins with the first page again: the deleted
    items are gone."""
    memory, given = job.memory, job.given
    wanted = Selection.of(given).filter(given["before_ms"])
    page = await client.search_items(
        given["topic"], filter=ItemFilter(failure_contains=wanted.reason_contains), page_items=most,
        cursor=memory.get("cursor"),
    )  # fmt: skip
    found = [item for item in page.items if matches(wanted, item)]
    ids = [item.id for item in found if item.state != ItemState.LEASED]
    memory["leased"] = memory.get("leased", 0) + len(found) - len(ids)
    at_least = at_most = 0
    for outcome in await client.delete_items(ids) if ids else ():
        at_least += outcome is None
        at_most += outcome is None or isinstance(outcome, OutcomeUnknown)
        if isinstance(outcome, FoqsError) and not isinstance(outcome, NotFound):
            memory["failed"] = memory.get("failed", 0) + 1
            memory.setdefault("error", outcome.message)
    memory["cursor"] = page.cursor
    failed = memory.get("failed", 0)
    said = [
        memory["leased"] and counted(memory["leased"], "item", "stays, which a consumer has leased",
                                     "stay, which consumers have leased"),
        failed and f"{counted(failed, 'item')} not deleted; the first error: {memory['error']}",
    ]  # fmt: skip
    return Stepped(at_least, at_most, page.cursor is not None, "; ".join([one for one in said if one]), bool(failed))


STEPS = {REDRIVE: redrive_step, DELETE: delete_step}
