# Written by script/twin.py from foqs/client/_async/operator_calls.py: change that file.
"""Methods of `Client` for operators: figures, explanations, hooks, leases by age or worker, dead letters."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from time import monotonic
from typing import Any, Literal

from foqs.bounds import LIMITS, MOST_LISTED, NAME_BYTES, RATE_STEPS, SCHEDULE_BYTES
from foqs.checks import I32_MAX, I64_MAX, check_callable, check_time_ms
from foqs.client import methods
from foqs.client._sync.requests import Requests
from foqs.client.arguments import Check, Entries, check_item, checked, duration, instance_of, text, whole
from foqs.client.items import Item, ItemSpec, ItemState, looked_at
from foqs.client.operator_types import (
    ChangedItems,
    Consumers,
    Explanation,
    Failing,
    FailureFilter,
    FailureGroup,
    Failures,
    ItemFilter,
    ItemPage,
    Rates,
    Redriven,
    RefusedTopic,
    Released,
    Result,
    Schedule,
    Schedules,
    ServerInfo,
    Status,
    Throttles,
    TopicsPage,
    Tried,
    rates_of,
    tried_of,
)
from foqs.errors import FoqsError, Invalid, Overloaded, Unavailable
from foqs.figures import (
    ActiveTopic,
    ConsumerStats,
    FailingTopic,
    HostStatus,
    ThrottleStats,
    TopicStats,
    from_struct,
)
from foqs.idl import idl
from foqs.ids import parse_id
from foqs.rows import FailureCause
from foqs.second_answer import CHANGE, KEYED, ONCE

_PAGE = 1_000
"""Items of one request of `change_all`."""
_PAGES_A_SECOND = 10
"""With a pace: smaller requests are spread more evenly."""

_WAITING = (ItemState.READY, ItemState.DELAYED, ItemState.BEHIND)
_PRIORITY: Check = whole(-I32_MAX - 1, I32_MAX, none=True)
_TIME_MS: Check = partial(check_time_ms, none=True)


def _check_sample(name: str, value: object) -> None:
    instance_of(ItemSpec)(name, value)
    assert isinstance(value, ItemSpec), "the check says so"
    check_item(value)


def _with(filter: ItemFilter | None, state: ItemState | None, fairness_key: str | None) -> ItemFilter:
    """Return the filter with a state and a fairness key in place of its own, where they are given. Raises Invalid."""
    made = filter or ItemFilter()
    made = made if state is None else replace(made, state=state)
    return made if fairness_key is None else replace(made, fairness_key=fairness_key)


def _listing(ns: str, topic: str, wanted: ItemFilter, limit: int, cursor: str | None) -> Any:
    """Return the ListItemsRequest of a page."""
    conditions, struct = wanted.conditions(), None
    if conditions is not None:
        contains = wanted.failure_contains
        least, most = conditions.min_priority, conditions.max_priority
        struct = idl.ItemFilter(
            least, most, wanted.enqueued_before_ms, wanted.enqueued_after_ms, wanted.headers, contains,
            wanted.order_key, wanted.batch,
        )  # fmt: skip
    return idl.ListItemsRequest(
        ns=ns, topic=topic, state=wanted.state, limit=limit, cursor=cursor, fairness_key=wanted.fairness_key,
        filter=struct,
    )  # fmt: skip


class OperatorCalls:
    """A part of `Client`."""

    namespace: str
    _requests: Requests

    # ------------------------------------------------------------------------------------- look

    @checked()
    def server_info(self, *, timeout_ms: int | None = None) -> ServerInfo:
        """Version, limits and clock of the server that answers, and the rights of this client."""
        response = self._requests.call(methods.SERVER_INFO, idl.GetServerInfoRequest(), timeout_ms)
        rights = None if response.rights is None else {ns: tuple(some) for ns, some in response.rights.items()}
        return ServerInfo(response.version, response.limits or {}, response.now_ms, response.principal, rights)

    @checked()
    def status(self, *, timeout_ms: int | None = None) -> Status:
        """The state of all hosts. The host that answers waits 2 s for the other ones. Needs the right `admin`. The
        answer has the items and topics of the namespaces with that right."""
        response = self._requests.call(methods.STATUS, idl.GetStatusRequest(), timeout_ms)
        hosts = [from_struct(HostStatus, one) for one in response.hosts or ()]
        return Status(tuple(hosts), tuple(response.missing or ()))

    @checked(topic=text(NAME_BYTES, none=True))
    def consumers(
        self, topic: str | None = None, *, all_namespaces: bool = False, timeout_ms: int | None = None
    ) -> Consumers:
        """The consumers of the last 10 minutes and the workers that hold leases, over all hosts: of one topic, or of
        all. At most 1,000. Needs the right `admin`."""
        request = idl.ListConsumersRequest(None if all_namespaces else self.namespace, topic)
        response = self._requests.call(methods.CONSUMERS, request, timeout_ms)
        found = [from_struct(ConsumerStats, one) for one in response.consumers or ()]
        return Consumers(tuple(found), bool(response.more), tuple(response.missing or ()))

    @checked(steps=whole(1, RATE_STEPS), limit=whole(1, MOST_LISTED))
    def rates(
        self,
        *,
        all_namespaces: bool = False,
        steps: int = RATE_STEPS,
        limit: int = 100,
        with_items: bool = False,
        timeout_ms: int | None = None,
    ) -> Rates:
        """Items that were enqueued, delivered and acked, and attempts that failed, in each of the last `steps` whole
        steps of 10 s, at most 360, over all hosts: of this namespace, or of up to `limit` in which the client has a
        right. `with_items`: the items of this namespace by state, too, and its topics with the oldest ready ones."""
        ns = None if all_namespaces else self.namespace
        request = idl.GetRatesRequest(ns, steps, limit, with_items or None)
        return rates_of(self._requests.call(methods.RATES, request, timeout_ms), steps)

    @checked()
    def get_item(self, item_id: int | str, *, timeout_ms: int | None = None) -> Item:
        """The item with its `state`; leases nothing. An id may also be its text (see `parse_id`). Raises NotFound."""
        item_id = parse_id(item_id)
        response = self._requests.call(methods.GET_ITEM, idl.GetItemRequest(id=item_id), timeout_ms, item_id)
        return looked_at(response.item, response.state)

    @checked()
    def find_item(self, dedup_key: str, *, timeout_ms: int | None = None) -> Item:
        """The item that was stored with `dedup_key`, as `get_item` returns it. Raises NotFound, also when the
        window of the key has ended."""
        request = idl.GetItemRequest(ns=self.namespace, dedup_key=dedup_key)
        response = self._requests.call(methods.GET_ITEM, request, timeout_ms)
        return looked_at(response.item, response.state)

    @checked(wait_ms=duration(most=LIMITS.result_wait_max_ms))
    def get_result(self, item_id: int | str, *, wait_ms: int = 0, timeout_ms: int | None = None) -> Result:
        """How an item ended, once its end is committed. After `wait_ms` (0: at once; at most 60,000) the `state` is
        the present state.

        Raises NotFound when the item ended and its topic does not keep it (policy `keep`), or ended in another way than
        an ack or a failure. A call that waited gets the result in any case, unless the item's shard got another owner.
        """
        number = parse_id(item_id)
        request = idl.GetResultRequest(number, wait_ms or None)
        return Result.of(self._requests.call(methods.GET_RESULT, request, timeout_ms, number, wait_ms=wait_ms))

    @checked(state=instance_of(ItemState, none=True), filter=instance_of(ItemFilter, none=True))
    def list_items(
        self,
        topic: str,
        *,
        state: ItemState | None = None,
        fairness_key: str | None = None,
        filter: ItemFilter | None = None,
        page_items: int = 100,
        timeout_ms: int | None = None,
    ) -> Iterator[Item]:
        """All items of a topic, or all that meet `filter`, a page at a time; leases nothing, and is no snapshot.
        `state` and `fairness_key` replace the fields of the filter. With a `fairness_key`, only the items that were
        enqueued with it ("": without one); dead letters have their key in the failure.

        With a filter the hosts pass over the other items. A request looks at 10,000 items at most, so the next item may
        take many requests: see `search_items`."""
        wanted = _with(filter, state, fairness_key)
        request = _listing(self.namespace, topic, wanted, page_items, None)
        return (
            looked_at(item, item.state)
            for page in self._requests.pages(methods.LIST_ITEMS, request, timeout_ms)
            for item in page.items or ()
            if wanted.matches(item)  # a host of an earlier version lists other items, too
        )

    @checked(
        state=instance_of(ItemState, none=True),
        filter=instance_of(ItemFilter, none=True),
        cursor=text(none=True),
    )
    def search_items(
        self,
        topic: str,
        *,
        filter: ItemFilter | None = None,
        state: ItemState | None = None,
        page_items: int = 100,
        cursor: str | None = None,
        timeout_ms: int | None = None,
    ) -> ItemPage:
        """One page of `list_items`, with up to `page_items` items: the first page, or the page behind the one whose
        `cursor` is given, with the same arguments. With a filter a page ends when 10,000 items were looked at, or after
        about a second: it may have no items, and a cursor.

        >>> client.search_items("mail", filter=ItemFilter(headers={"kind": "export"}))     # doctest: +SKIP
        ItemPage(items=(), cursor='WzEsICJyZWFkeSIs...', looked_at=10000)
        """
        wanted = _with(filter, state, None)
        request = _listing(self.namespace, topic, wanted, page_items, cursor)
        page = self._requests.call(methods.LIST_ITEMS, request, timeout_ms)
        listed = page.items or ()
        items = tuple([looked_at(item, item.state) for item in listed if wanted.matches(item)])
        return ItemPage(items, page.cursor or None, len(listed) if page.looked_at is None else page.looked_at)

    @checked()
    def active_topics(
        self,
        *,
        all_namespaces: bool = False,
        all_states: bool = False,
        dead: bool = False,
        rates: bool = False,
        page_topics: int = 1_000,
        timeout_ms: int | None = None,
    ) -> Iterator[ActiveTopic]:
        """Topics with ready items (`all_states`: in any state, with counts), by namespace and topic, page by page.
        `dead`: only topics that have dead letters, or take them; a host of an older version returns all topics.
        `rates`: with the events of the last minute, and if they are paused or closed; with `all_states`, topics that
        have no items but had events then are there, too."""
        ns = None if all_namespaces else self.namespace
        request = idl.GetActiveTopicsRequest(
            ns, page_topics, all=all_states or None, dead=dead or None, rates=rates or None
        )
        pages = self._requests.pages(methods.TOPICS, request, timeout_ms)
        return (from_struct(ActiveTopic, found) for page in pages for found in page.topics or ())

    @checked(cursor=text(none=True))
    def topics_page(
        self,
        *,
        all_namespaces: bool = False,
        all_states: bool = False,
        dead: bool = False,
        rates: bool = False,
        page_topics: int = 1_000,
        cursor: str | None = None,
        timeout_ms: int | None = None,
    ) -> TopicsPage:
        """One page of `active_topics`, from the `cursor` of another page on."""
        ns = None if all_namespaces else self.namespace
        request = idl.GetActiveTopicsRequest(ns, page_topics, cursor, all_states or None, dead or None, rates or None)
        page = self._requests.call(methods.TOPICS, request, timeout_ms)
        return TopicsPage(tuple([from_struct(ActiveTopic, found) for found in page.topics or ()]), page.cursor or None)

    @checked()
    def topic_stats(self, topic: str, *, tenants: int | None = None, timeout_ms: int | None = None) -> TopicStats:
        """Items, tenants and policy of a topic, over all hosts. A topic without items has counts of 0. `tenants` with
        the most ready items come by name, 1 to 1,000; default: 100."""
        request = idl.GetTopicStatsRequest(ns=self.namespace, topic=topic, limit=tenants)
        found = self._requests.call(methods.TOPIC_STATS, request, timeout_ms)
        return from_struct(TopicStats, found, policy=json.loads(found.policy))

    @checked()
    def throttles(self, prefix: str = "", *, limit: int | None = None, timeout_ms: int | None = None) -> Throttles:
        """Throttle keys that are in use and begin with `prefix`, over all hosts, in the order of their names: the first
        `limit`, or all (0: no limit). Keys that nothing used for some seconds are left out."""
        request = idl.GetThrottlesRequest(self.namespace, prefix or None, min(limit or MOST_LISTED, MOST_LISTED))
        found: list[ThrottleStats] = []
        missing: set[str] = set()
        for page in self._requests.pages(methods.THROTTLES, request, timeout_ms):
            found += [from_struct(ThrottleStats, one) for one in page.throttles or ()]
            missing.update(page.missing or ())
            if limit:
                if len(found) >= limit:
                    break
                request.limit = min(limit - len(found), MOST_LISTED)
        return Throttles(tuple(found), tuple(sorted(missing)))

    @checked()
    def schedules(self, prefix: str = "", *, limit: int | None = None, timeout_ms: int | None = None) -> Schedules:
        """The schedules whose names begin with `prefix`, in the order of their names: the first `limit`, or all
        (0: no limit)."""
        request = idl.ListSchedulesRequest(self.namespace, prefix or None, min(limit or MOST_LISTED, MOST_LISTED))
        found: list[Schedule] = []
        missing: set[str] = set()
        for page in self._requests.pages(methods.SCHEDULES, request, timeout_ms):
            found += [
                Schedule(
                    one.name, one.setting, tuple(one.next_at_ms or ()), one.last_at_ms, one.last_id, one.missed or 0,
                    bool(one.paused), one.coordinator or "", one.error or "",
                )
                for one in page.schedules or ()
            ]  # fmt: skip
            missing.update(page.missing or ())
            if limit:
                if len(found) >= limit:
                    break
                request.limit = min(limit - len(found), MOST_LISTED)
        return Schedules(tuple(found), tuple(sorted(missing)))

    @checked(name=text(SCHEDULE_BYTES), dedup_key=text(NAME_BYTES, none=True))
    def run_schedule(self, name: str, *, dedup_key: str | None = None, timeout_ms: int | None = None) -> int:
        """Store an item of a schedule now, and return its id. Raises NotFound without such a schedule, and
        OutcomeUnknown when the item may or may not have been stored, without a `dedup_key`."""
        request = idl.RunScheduleRequest(self.namespace, name, dedup_key)
        policy = ONCE if dedup_key is None else KEYED
        response = self._requests.call(methods.RUN_SCHEDULE, request, timeout_ms, policy=policy)
        return int(response.id)

    @checked()
    def explain(self, item_id: int | str, *, timeout_ms: int | None = None) -> Explanation:
        """Why an item is not delivered yet. `eta_ms` needs the rate of the topic's deliveries, which a host measures
        from the first question on: ask again some seconds later.

        >>> client.explain(281474976710657)                         # doctest: +SKIP
        Explanation(reasons=(ExplainReason(code=<Reason.DELAYED: 6>, text='Its delay ends in 42.0 s.', ...),), ...)
        """
        number = parse_id(item_id)
        request = idl.ExplainItemRequest(id=number)
        return Explanation.of(self._requests.call(methods.EXPLAIN, request, timeout_ms, number))

    @checked()
    def explain_topic(self, topic: str, *, timeout_ms: int | None = None) -> Explanation:
        """Why no item of a topic is delivered: as the host that is nearest to a delivery sees it."""
        request = idl.ExplainItemRequest(ns=self.namespace, topic=topic)
        return Explanation.of(self._requests.call(methods.EXPLAIN, request, timeout_ms))

    # ------------------------------------------------------------------------------------- hooks

    @checked(sample=_check_sample)
    def try_hook(
        self,
        sample: ItemSpec,
        *,
        hook: Literal["on_enqueue", "on_failure"] = "on_enqueue",
        script: str | None = None,
        source: str | None = None,
        attempt: int | None = None,
        cause: FailureCause | None = None,
        reason: str | None = None,
        timeout_ms: int | None = None,
    ) -> Tried:
        """Run a script on a sample of an item. Nothing is stored.

        hook       `on_enqueue` or `on_failure`
        script     name of a script in the settings, or
        source     a script as text: exactly one of the two
        attempt    of `on_failure`: the attempt that failed, default 1
        cause      of `on_failure`: FAILED (default), EXPIRED or REJECTED
        reason     of `on_failure`: as the consumer gave it

        Raises NotFound: the settings have no such script; Unavailable: the host cannot run scripts.

        >>> tried = client.try_hook(ItemSpec("mail", b"x"), source="function on_enqueue() end")   # doctest: +SKIP
        """
        if (script is None) == (source is None):
            raise Invalid("script and source: give exactly one of the two")
        request = idl.TryHookRequest(self.namespace, hook, script, source, sample, attempt, cause, reason)
        return tried_of(self._requests.call(methods.TRY_HOOK, request, timeout_ms))

    # ------------------------------------------------------------------------------------- leases

    @checked()
    def release_leases(
        self,
        topic: str,
        *,
        worker: str | None = None,
        held_longer_than_ms: int | None = None,
        reason: str | None = None,
        timeout_ms: int | None = None,
    ) -> Released:
        """End leases of a topic as if by time: the attempts count, and at-most-once items are removed.

        worker               only leases of the worker with this name (see `Worker`)
        held_longer_than_ms  only leases that are at least this old
        reason               why, in the items' last failure, with the name of the caller

        >>> client.release_leases("mail", worker="host-3:4711")     # doctest: +SKIP
        Released(released=8, missing=())
        """
        request = idl.ReleaseLeasesRequest(self.namespace, topic, worker, held_longer_than_ms, reason)
        response = self._requests.call(methods.RELEASE_LEASES, request, timeout_ms)
        return Released(response.released, tuple(response.missing or ()))

    # ------------------------------------------------------------------------------------- items that wait

    @checked(priority=_PRIORITY, deliver_after_ms=_TIME_MS)
    def change(
        self,
        item_ids: Iterable[int | str],
        *,
        priority: int | None = None,
        delay_ms: int | None = None,
        deliver_after_ms: int | None = None,
        timeout_ms: int | None = None,
    ) -> list[FoqsError | None]:
        """Give READY and DELAYED items another `priority`, another time, or both: each enters its lane at the new
        place, as a fresh item would. Return None for each that was changed, else its error.

        delay_ms          from now; 0 makes a DELAYED item READY, and leaves a READY one at its place
        deliver_after_ms  Unix epoch milliseconds, in place of `delay_ms`

        The error is Conflict for an item that a consumer has leased, or that has ended and is kept; Invalid if the
        item's TTL ends by the new time. After OutcomeUnknown the same call may be repeated.

        >>> client.change([281474976710657], priority=-5, delay_ms=0)            # doctest: +SKIP
        [None]
        """
        if priority is delay_ms is deliver_after_ms is None:
            raise Invalid("priority, delay_ms and deliver_after_ms: give at least one of them")
        if delay_ms is not None and deliver_after_ms is not None:
            raise Invalid("delay_ms and deliver_after_ms: give one of the two")
        values = (priority, delay_ms, deliver_after_ms)
        given = Entries(item_ids, lambda one: methods.Changed(parse_id(one), *values))
        return given.outcomes(self._requests.each(methods.CHANGE, CHANGE, given.good, timeout_ms))

    @checked(
        filter=instance_of(ItemFilter, none=True),
        priority=_PRIORITY,
        deliver_after_ms=_TIME_MS,
        count=whole(0, I64_MAX, zero="all"),
        confirm=partial(check_callable, form="confirm(found)", none=True),
        on_progress=partial(check_callable, form="on_progress(changed)", none=True),
    )
    def change_all(
        self,
        topic: str,
        *,
        filter: ItemFilter | None = None,
        priority: int | None = None,
        delay_ms: int | None = None,
        deliver_after_ms: int | None = None,
        count: int = 0,
        pace_per_second: int | None = None,
        dry_run: bool = False,
        confirm: Callable[[ChangedItems], bool] | None = None,
        on_progress: Callable[[ChangedItems], object] | None = None,
        timeout_ms: int | None = None,
    ) -> ChangedItems:
        """Change the items of a topic that match `filter`, as `change` does: list them, then change the listed ones,
        at most `count` (0: all), and about `pace_per_second` in a second (0: no limit). An item that a consumer takes
        after the list is skipped and counted. Where only the `priority` changes, items that have it are not listed: a
        call for the rest of an earlier one takes the time of the rest.

        confirm      is called after the list; if it returns False, nothing is changed. With `dry_run` it is not called
        on_progress  is called after each request

        `timeout_ms` is that of each request. Raises what `list_items` raises; the error of an item counts as failed.

        >>> client.change_all("mail", filter=ItemFilter(fairness_key="acme"), delay_ms=0)      # doctest: +SKIP
        ChangedItems(found=120, changed=118, leased=3, taken=2, failed=0, error=None)
        """
        wanted = filter or ItemFilter()
        if wanted.state not in (None, *_WAITING):
            raise Invalid("filter.state: it must be ItemState.READY, DELAYED or BEHIND, or None for all three")
        ids: dict[int, None] = {}
        leased = 0
        has = priority if delay_ms is None and deliver_after_ms is None else None
        # The leased items are counted where items in any state match.
        for state in (*_WAITING, ItemState.LEASED) if wanted.state is None else (wanted.state,):
            listed = self.list_items(topic, state=state, filter=wanted, page_items=MOST_LISTED, timeout_ms=timeout_ms)
            for item in listed:
                if state is ItemState.LEASED:
                    leased += 1
                elif has is None or item.priority != has:
                    ids[item.id] = None
        chosen = list(islice(ids, count or None))
        done = ChangedItems(len(chosen), leased=leased)
        if dry_run or not chosen or (confirm is not None and not confirm(done)):
            return done
        begun, size = monotonic(), _PAGE
        if pace_per_second:
            size = min(size, max(1, pace_per_second // _PAGES_A_SECOND))
        for at in range(0, len(chosen), size):
            if pace_per_second and (early_s := at / pace_per_second - (monotonic() - begun)) > 0:
                self._requests.caller.pause(early_s)
            outcomes = self.change(
                chosen[at : at + size], priority=priority, delay_ms=delay_ms, deliver_after_ms=deliver_after_ms,
                timeout_ms=timeout_ms,
            )  # fmt: skip
            done = done.plus(outcomes)
            if on_progress is not None:
                on_progress(done)
        return done

    # ------------------------------------------------------------------------------------- dead letters

    @checked()
    def list_failures(
        self,
        topic: str,
        *,
        cause: FailureCause | None = None,
        fairness_key: str | None = None,
        timeout_ms: int | None = None,
    ) -> Failures:
        """The dead letters of the dead-letter topic `topic`, by group; only with one `cause`, or of items with one
        `fairness_key`, if given. It is no snapshot."""
        request = idl.ListFailuresRequest(self.namespace, topic, cause, MOST_LISTED, None, fairness_key)
        groups: list[FailureGroup] = []
        missing: set[str] = set()
        for page in self._requests.pages(methods.LIST_FAILURES, request, timeout_ms):
            groups += map(FailureGroup.of, page.groups or ())
            missing.update(page.missing or ())
        return Failures(groups, tuple(sorted(missing)))

    @checked(topic=text(NAME_BYTES, none=True), limit=whole(1, MOST_LISTED))
    def failing(self, topic: str | None = None, *, limit: int = 100, timeout_ms: int | None = None) -> Failing:
        """What fails now: failed attempts of the last hour by topic, cause and fingerprint of the reason, over all
        hosts, whether their items are dead letters or are tried again. Up to `limit` topics, 1 to 1,000, or one
        `topic`. Hosts count since they started."""
        request = idl.ListFailingRequest(self.namespace, topic, limit)
        found = self._requests.call(methods.FAILING, request, timeout_ms)
        topics = tuple([from_struct(FailingTopic, one) for one in found.topics or ()])
        return Failing(topics, bool(found.more), tuple(found.missing or ()))

    @checked(count=whole(0, I64_MAX, zero="all"), filter=instance_of(FailureFilter, none=True))
    def redrive(
        self,
        topic: str,
        count: int = 0,
        *,
        filter: FailureFilter | None = None,
        per_fingerprint: int | None = None,
        to_topic: str | None = None,
        pace_per_second: int | None = None,
        dry_run: bool = False,
        timeout_ms: int | None = None,
    ) -> Redriven:
        """Return dead letters of the dead-letter topic `topic` to the topics that they came from (or to `to_topic`).
        They are ready again, with attempt 0.

        At most `count` of them return, `per_fingerprint` of each group, and about `pace_per_second` in a second, 1 to
        1,000,000; 0: no limit. The call ends with its `timeout_ms` at the latest; while `more` is True, another call
        continues. `dry_run` counts and changes nothing. Dead letters of a closed or full topic stay, and all other ones
        return: see `refused`. With `to_topic` the call ends there.

        Raises Unavailable (closed) or Overloaded (full) when no item was redriven because of that, and OutcomeUnknown
        when the reply was lost: some items may have been redriven.
        """
        request = idl.RedriveItemsRequest(
            self.namespace, topic, count, filter, per_fingerprint or None, to_topic, pace_per_second or None,
            dry_run or None,
        )  # fmt: skip
        found = self._requests.call(methods.REDRIVE, request, timeout_ms, policy=ONCE)
        missing = tuple(found.missing_shards or ())
        refused = tuple(map(RefusedTopic.of, found.refused or ()))
        if refused and not (found.at_most or dry_run):
            reasons = "; ".join(f"{one.reason} ({one.items:,} dead letters stay)" for one in refused)
            raise (Unavailable if refused[0].closed else Overloaded)(f"no item was redriven: {reasons}")
        leased, duplicate = found.skipped_leased or 0, found.skipped_duplicate or 0
        items = {one.id: one.topic for one in found.items or ()}
        return Redriven(found.at_least, found.at_most, leased, bool(found.more), missing, refused, duplicate, items)
