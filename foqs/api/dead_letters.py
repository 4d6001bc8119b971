"""ListFailures and RedriveItems: dead letters by group, and their return to the topics that they came from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

from foqs.api import validation
from foqs.api.host import Host
from foqs.api.validation import fairness_key
from foqs.bounds import MOST_PACE, REASON_BYTES, Limits
from foqs.checks import I32_MAX
from foqs.engine.dead_letters import (
    MOST_NAMED,
    PAGE_ITEMS,
    Admit,
    FailureListing,
    GroupKey,
    PageAsk,
    PageOutcome,
    RedrivePage,
    Refused,
)
from foqs.engine.listing import cursor_of, parts_of
from foqs.errors import FoqsError, Invalid, LostReply, item_error
from foqs.idl import idl, is_forwarded
from foqs.peers.gather import FailureGathering, Found, group_of
from foqs.peers.redrive import MOST_GROUPS, Plan, Redrive, Redriven
from foqs.policies.failures import FailureFilter
from foqs.rows import FailureCause, FailureGroup, FailurePosition
from foqs.rpc.call import Call

_MOST_COUNT = (1 << 63) - 1


class DeadLetters:
    def __init__(self, host: Host, admit: Admit) -> None:
        self._host = host
        self._engine = host.engine
        self._now_ms = host.now_ms
        self._forwarder = host.forwarder
        self._admit = admit

    def handlers(self) -> dict[str, Callable[[Call], None]]:
        return {"ListFailures": self.list_failures, "RedriveItems": self.redrive}

    # ------------------------------------------------------------------------------------- groups

    def list_failures(self, call: Call) -> None:
        request, limits = call.request, self._host.limits
        self._host.refuse_when_full()
        key = self._host.topic(request)
        wanted = FailureFilter(cause=_cause(request.cause), fairness=_fairness(request.fairness_key))
        limit = validation.within(request.limit, "limit", 1, limits.list_items, 100)
        after = _position(request.cursor)
        if after is not None and abs(after[0]) > 1 << 63:
            raise Invalid("the cursor is not one of this server's")
        deadline_ms = self._now_ms() + validation.timeout_ms(request, limits)

        def reply(groups: list[FailureGroup], more: bool, missing: list[str]) -> None:
            cursor = cursor_of(groups[-1].fingerprint, groups[-1].cause) if more and groups else None
            call.reply(idl.ListFailuresResponse(list(map(_struct, groups)), cursor, missing))

        if is_forwarded(request):
            listing = self._listing(key, wanted, limit, after, lambda found: _report(call, reply, found))
            listing.begin(deadline_ms)
            return
        unowned = [f"shard {number}" for number in sorted(self._forwarder.routing().unowned)]
        gathering = FailureGathering(limit, unowned, reply)
        part = partial(
            idl.ListFailuresRequest, request.ns, request.topic, request.cause, limit, request.cursor,
            request.fairness_key,
        )  # fmt: skip
        self._forwarder.ask_others(call.method, part, request, deadline_ms, gathering.add_answer, gathering.end)
        # This host's answer has to come before the end of the caller's time, too.
        own_ms = deadline_ms - min(500, (deadline_ms - self._now_ms()) // 10)
        self._listing(key, wanted, limit, after, partial(gathering.here, self._host.address())).begin(own_ms)

    def _listing(
        self,
        key: tuple[str, str],
        wanted: FailureFilter,
        limit: int,
        after: GroupKey | None,
        done: Callable[[Found | FoqsError], None],
    ) -> FailureListing:
        return FailureListing(
            self._engine.state, key, wanted, limit, after, lambda groups, more: done((groups, more)), done
        )

    # ------------------------------------------------------------------------------------- redrive

    def redrive(self, call: Call) -> None:
        request = call.request
        self._host.refuse_when_draining()
        timeout_ms = validation.timeout_ms(request, self._host.limits)
        ask, pace = self._asked(request)
        if is_forwarded(request):
            page, now_ms = self._page(request, ask), self._now_ms()
            answered = partial(_page_answered, call)
            RedrivePage(self._engine.state, page, answered, self._admit).begin(now_ms, now_ms + timeout_ms)
            return
        if (request.shard, request.cursor, request.taken) != (None, None, None):
            raise Invalid("shard, cursor and taken are set by hosts only")

        def reply(result: Redriven) -> None:
            call.reply(
                idl.RedriveItemsResponse(
                    result.at_least,
                    result.at_most,
                    result.leased,
                    result.more,
                    sorted(result.missing),
                    refused=_refused(result.refused),
                    skipped_duplicate=result.duplicates or None,
                    items=_named(result.items),
                )
            )

        patience_ms = min(timeout_ms, self._forwarder.handover_ms)
        plan = Plan(ask, request.count or 0, pace, patience_ms)
        send = partial(self._send, request)
        Redrive(self._forwarder.exchange, plan, send, reply, self._admit).begin(timeout_ms)

    def _asked(self, request: Any) -> tuple[PageAsk, int]:
        """Check a request. Return what its pages have in common, and the items a second (0: no bound)."""
        limits = self._host.limits
        key = self._host.topic(request)
        validation.within(request.count, "count", 0, _MOST_COUNT, 0)
        per_group = validation.within(request.per_fingerprint, "per_fingerprint", 1, I32_MAX, 0)
        pace = validation.within(request.pace_per_second, "pace_per_second", 1, MOST_PACE, 0)
        to_topic = None if request.to_topic is None else validation.name(request.to_topic, "to_topic", limits)
        if to_topic == request.topic:
            raise Invalid("to_topic is the dead-letter topic itself")
        wanted = _filter(request.filter, limits, self._now_ms())
        dry_run = bool(request.dry_run)
        return PageAsk(key, 0, None, wanted, PAGE_ITEMS, per_group, {}, to_topic, dry_run), pace

    def _page(self, request: Any, ask: PageAsk) -> PageAsk:
        """Return the page that another host asks for."""
        if request.shard is None:
            raise Invalid("shard is missing")
        most = validation.within(request.count, "count", 1, PAGE_ITEMS, 0)
        after = _position(request.cursor)
        if len(request.taken or ()) > 2 * MOST_GROUPS:
            raise Invalid("taken has too many groups")
        return replace(ask, shard=request.shard, after=after, most=most, taken=_taken(request.taken))

    def _send(
        self,
        request: Any,
        ask: PageAsk,
        address: str,
        deadline_ms: int,
        ended: Callable[[PageOutcome | FoqsError], None],
    ) -> None:
        """Have another host carry out a page of `request`."""
        part = idl.RedriveItemsRequest(
            request.ns,
            request.topic,
            ask.most,
            request.filter,
            request.per_fingerprint,
            request.to_topic,
            dry_run=request.dry_run,
            shard=ask.shard,
            cursor=None if ask.after is None else cursor_of(*ask.after),
            taken=[_counted(group, count) for group, count in ask.taken.items()] or None,
        )

        def answered(response: Any, error: FoqsError | None) -> None:
            ended(error if error is not None else _outcome(response))

        self._forwarder.send(address, "RedriveItems", part, request, deadline_ms, answered)


def _report(call: Call, reply: Callable[[list[FailureGroup], bool, list[str]], None], found: Found | FoqsError) -> None:
    if isinstance(found, FoqsError):
        call.fail(found)
    else:
        reply(*found, [])


def _page_answered(call: Call, outcome: PageOutcome | FoqsError) -> None:
    if isinstance(outcome, FoqsError):
        call.fail(outcome)
        return
    call.reply(
        idl.RedriveItemsResponse(
            outcome.redriven,
            outcome.redriven + outcome.unknown,
            outcome.leased,
            outcome.next is not None,
            [],
            None if outcome.next is None else cursor_of(*outcome.next),
            [_counted(group, count) for group, count in outcome.taken.items()],
            _refused(outcome.refused),
            outcome.duplicates or None,
            _named(outcome.items),
        )
    )


def _outcome(response: Any) -> PageOutcome | FoqsError:
    """Return the outcome of a page that another host carried out."""
    try:
        position = _position(response.cursor)
    except Invalid:
        return LostReply("the answer has a cursor that is none")
    at_least = response.at_least or 0
    return PageOutcome(
        at_least,
        max(0, (response.at_most or 0) - at_least),
        response.skipped_leased or 0,
        position,
        _taken(response.taken),
        {one.topic: Refused(one.items or 0, item_error(one.error)) for one in response.refused or ()},
        response.skipped_duplicate or 0,
        {one.id: one.topic for one in response.items or ()},
    )


def _position(cursor: str | None) -> FailurePosition | None:
    parts = parts_of(cursor, (int, int))
    return None if parts is None else (parts[0], parts[1])


def _taken(given: Sequence[Any] | None) -> dict[GroupKey, int]:
    """Return the number of items that were taken, by group."""
    return {(one.fingerprint, one.cause): one.items for one in map(group_of, given or ())}


def _refused(found: Mapping[str, Refused]) -> list[Any]:
    return [
        idl.RefusedTopic(topic, items, idl.ItemError(int(error.code), error.message, error.retry_after_ms))
        for topic, (items, error) in sorted(found.items())
    ]


def _named(items: Mapping[int, str]) -> list[Any]:
    return [idl.RedrivenItem(item_id, topic) for item_id, topic in islice(items.items(), MOST_NAMED)]


def _cause(value: int | None) -> int | None:
    if value is not None and value not in FailureCause._value2member_map_:
        raise Invalid(f"cause is {value}, not one of {', '.join(str(int(one)) for one in FailureCause)}")
    return value


def _fairness(value: str | None) -> bytes | None:
    return None if value is None else fairness_key(value).encode()


def part_of_reason(value: Any, what: str) -> bytes:
    """Return a text that the reason of a failure has to contain, as UTF-8. Raises Invalid."""
    part = validation.text(value, what).encode()
    if not 1 <= len(part) <= REASON_BYTES:
        raise Invalid(f"{what} must have 1 to {REASON_BYTES} bytes")
    return part


def _filter(given: Any, limits: Limits, now_ms: int) -> FailureFilter:
    """Return the filter of a request. Raises Invalid."""
    if given is None:
        return FailureFilter()
    reason = given.reason_contains
    if reason is not None:
        reason = part_of_reason(reason, "reason_contains")
    origin = None if given.origin_topic is None else validation.name(given.origin_topic, "origin_topic", limits)
    least = validation.within(given.min_attempts, "min_attempts", 0, I32_MAX, 0)
    most = validation.within(given.max_attempts, "max_attempts", 0, I32_MAX, I32_MAX)
    if least > most:
        raise Invalid(f"min_attempts is {least}, more than max_attempts, {most}")
    validation.headers(given.headers, limits)
    return FailureFilter(
        fingerprint=given.fingerprint,
        cause=_cause(given.cause),
        reason_contains=reason,
        died_before_ms=validation.moment(given.died_before_ms, "died_before_ms", now_ms),
        died_from_ms=validation.moment(given.died_after_ms, "died_after_ms", now_ms),
        fairness=_fairness(given.fairness_key),
        headers=given.headers or {},
        min_attempts=given.min_attempts,
        max_attempts=given.max_attempts,
        origin_topic=None if origin is None else origin.encode(),
        item_id=given.item_id,
    )


def _struct(group: FailureGroup) -> Any:
    return idl.FailureGroup(
        group.cause,
        group.fingerprint,
        group.items,
        group.first_died_at_ms,
        group.last_died_at_ms,
        group.sample_id,
        group.sample_reason.decode("utf-8", "replace"),
    )


def _counted(group: GroupKey, count: int) -> Any:
    return idl.FailureGroup(group[1], group[0], count)
