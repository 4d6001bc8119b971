"""Changes of all items of a topic that match: which items they are, and the steps of the jobs that change or delete
them.

A job reads the items that match state by state, each state once from its first item to its last. The order of the
states is that in which items advance without a consumer: an item that becomes ready while the job works is met again
behind its delay. A job passes over the items that already are as it wants them, and over those to which it gave a time
before, so none of its own changes is a reason for another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from foqs.checks import counted
from foqs.client import AsyncClient, Item, ItemFilter, ItemPage, ItemState
from foqs.console.jobs import Job, Stepped
from foqs.errors import Conflict, FoqsError, NotFound, OutcomeUnknown

CHANGE, DELETE = "change-items", "delete-items"
"""The kinds of jobs."""
COUNTED = 1_000
"""The most items of the count before a job begins."""
MOST_REMEMBERED = 1_000_000
"""Items to which one run of a job gives a time: it remembers their ids, in 100 MB at most."""
_WAITING = (ItemState.DELAYED, ItemState.READY)


class Bulk(NamedTuple):
    """Arguments of a job, JSON. `begun_ms`: its begin, of the service's clock. `order_key` and `state` to `contains`
    are fields of an ItemFilter. `leased`: a delete in all states is about leased items, too. `priority`,
    `deliver_after_ms`: what a change gives the items; `now` makes them ready."""

    topic: str
    begun_ms: int
    state: int | None = None
    tenant: str | None = None
    headers: Mapping[str, str] | None = None
    before_ms: int | None = None
    after_ms: int | None = None
    least: int | None = None
    most: int | None = None
    contains: str | None = None
    delete: bool = False
    leased: bool = False
    priority: int | None = None
    deliver_after_ms: int | None = None
    now: bool = False
    order_key: str | None = None

    @classmethod
    def of(cls, topic: str, wanted: ItemFilter, begun_ms: int) -> Bulk:
        state = None if wanted.state is None else int(wanted.state)
        return cls(
            topic, begun_ms, state, wanted.fairness_key, wanted.headers, wanted.enqueued_before_ms,
            wanted.enqueued_after_ms, wanted.min_priority, wanted.max_priority, wanted.failure_contains,
            order_key=wanted.order_key,
        )  # fmt: skip

    def filter(self) -> ItemFilter:
        """Return the conditions, without the state. An item that is enqueued after the begin does not match."""
        until_ms = self.begun_ms + 1
        return ItemFilter(
            fairness_key=self.tenant, headers=self.headers,
            enqueued_before_ms=until_ms if self.before_ms is None else min(self.before_ms, until_ms),
            enqueued_after_ms=self.after_ms, min_priority=self.least, max_priority=self.most,
            failure_contains=self.contains, order_key=self.order_key,
        )  # fmt: skip

    @property
    def gives_time(self) -> bool:
        return self.now or self.deliver_after_ms is not None

    @property
    def changed_states(self) -> tuple[ItemState, ...]:
        """The states of the items that the job changes, in the order in which it reads them."""
        if not self.delete:
            waiting = _WAITING[:1] if self.now and self.priority is None else (*_WAITING, ItemState.BEHIND)
            return tuple([one for one in waiting if self.state in (None, one)])
        if self.state is not None:
            return (ItemState(self.state),)
        leased = (ItemState.LEASED,) if self.leased else ()
        # The first item of an order key last: when it is deleted, the next one is ready.
        return (ItemState.BEHIND, *_WAITING, *leased, ItemState.COMPLETED, ItemState.FAILED)

    @property
    def states(self) -> tuple[ItemState, ...]:
        """The states that the job reads. Leased items that stay are counted first: a consumer may lease an item that
        the job has changed."""
        counts = self.state is None and ItemState.LEASED not in self.changed_states
        return (*((ItemState.LEASED,) if counts else ()), *self.changed_states)

    def is_about(self, item: Item) -> bool:
        """Return True if the job changes an item that matches: it has the state, and is not yet as the job wants it."""
        if item.state not in self.changed_states:
            return False
        if self.delete:
            return True
        is_in_time = (
            item.state != ItemState.DELAYED if self.now else self.deliver_after_ms in (None, item.deliver_after_ms)
        )
        return not (is_in_time and self.priority in (None, item.priority))


class Counted(NamedTuple):
    """What one search found. `items` the job would change, `leased` ones match and stay. `more`: it did not look at
    all items, but at `looked_at`."""

    items: int
    leased: int
    looked_at: int
    more: bool


async def count(client: AsyncClient, bulk: Bulk) -> Counted:
    """Raises what the search raises."""
    (state,) = bulk.changed_states if len(bulk.changed_states) == 1 else (None,)
    page = await client.search_items(bulk.topic, filter=bulk.filter(), state=state, page_items=COUNTED)
    items = sum(map(bulk.is_about, page.items))
    return Counted(items, _leased(bulk, page.items), page.looked_at, page.cursor is not None)


def _leased(bulk: Bulk, items: Sequence[Item]) -> int:
    """Return how many items stay because consumers have leased them."""
    if ItemState.LEASED in bulk.changed_states:
        return 0
    return sum(item.state == ItemState.LEASED for item in items)


class Place(NamedTuple):
    """How far a job is: in the state with the number `at` of `Bulk.states`, behind `cursor`. The counts are about the
    items of this pass, and `error` is the first error of an item."""

    at: int = 0
    cursor: str | None = None
    looked_at: int = 0
    leased: int = 0
    taken: int = 0
    failed: int = 0
    error: str = ""

    def behind(self, page: ItemPage, leased: int, outcomes: Sequence[FoqsError | None]) -> Place:
        taken, failed, error = self.taken, self.failed, self.error
        for outcome in outcomes:
            if isinstance(outcome, Conflict | NotFound):
                taken += 1
            elif outcome is not None:
                failed, error = failed + 1, error or outcome.message
        return Place(
            self.at + (page.cursor is None), page.cursor, self.looked_at + page.looked_at, self.leased + leased,
            taken, failed, error,
        )  # fmt: skip

    @property
    def words(self) -> str:
        said = [
            f"{self.looked_at:,} looked at",
            self.leased and counted(self.leased, "item", "stays, which a consumer has leased",
                                    "stay, which consumers have leased"),
            self.taken and counted(self.taken, "item", "was taken by a consumer, or ended, before the change",
                                   "were taken by consumers, or ended, before the change"),
            self.failed and f"{counted(self.failed, 'item')} failed; the first error: {self.error}",
        ]  # fmt: skip
        return "; ".join([one for one in said if one])


async def step(client: AsyncClient, job: Job, most: int) -> Stepped:
    """Read the next page, and change the items on it. The job's progress is kept when both are done. A page whose
    answer is lost is read again, without the items that were changed."""
    bulk, place = Bulk(**job.given), Place(**job.progress)
    state = bulk.states[place.at]
    page = await client.search_items(
        bulk.topic, filter=bulk.filter(), state=state, page_items=most, cursor=place.cursor
    )
    # A consumer may postpone an item after the change: it is met again.
    remembered: set[int] = job.memory.setdefault("changed", set())
    ids = [item.id for item in page.items if bulk.is_about(item) and item.id not in remembered]
    outcomes = await _change(client, bulk, ids) if ids else []
    if bulk.gives_time:
        remembered.update([item_id for item_id, outcome in zip(ids, outcomes, strict=True) if outcome is None])
    place = place.behind(page, _leased(bulk, page.items), outcomes)
    job.so_far = place.words
    more, full = place.at < len(bulk.states), len(remembered) >= MOST_REMEMBERED
    # A job that continues after its end tries the failed items again.
    job.progress = place._asdict() if more else {}
    at_least = sum(outcome is None for outcome in outcomes)
    at_most = at_least + sum(isinstance(outcome, OutcomeUnknown) for outcome in outcomes)
    if more and full:
        return Stepped(at_least, at_most, False, f"{MOST_REMEMBERED:,} items of one run: continue the job", failed=True)
    return Stepped(at_least, at_most, more, failed=bool(place.failed), advanced=True)


async def _change(client: AsyncClient, bulk: Bulk, ids: Sequence[int]) -> list[FoqsError | None]:
    if bulk.delete:
        return await client.delete_items(ids)
    return await client.change(
        ids, priority=bulk.priority, delay_ms=0 if bulk.now else None, deliver_after_ms=bulk.deliver_after_ms
    )


STEPS = {CHANGE: step, DELETE: step}
