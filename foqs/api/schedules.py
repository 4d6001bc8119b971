"""Schedules: what they fire, and the requests that list them and fire one now."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple

from foqs.api import responses, validation
from foqs.api.host import Host
from foqs.api.item_life import ItemLife
from foqs.api.lookups import Lookups
from foqs.engine.listing import cursor_of, parts_of
from foqs.errors import FoqsError, NotFound
from foqs.idl import idl
from foqs.peers.forwarded import Timers
from foqs.peers.gather import ANSWER_MS
from foqs.peers.scheduler import Fired, Lives, Schedule, Scheduler, item_key
from foqs.policies.entries import SCHEDULE
from foqs.policies.schedules import NAME_HEADER, TIME_HEADER, ScheduleEntry
from foqs.rpc.call import Call
from foqs.travel import bare

_ENQUEUE_MS = 5_000
_MOST_LISTED = 1_000
_LISTED = 100
_LIVING = (idl.ItemState.READY, idl.ItemState.LEASED, idl.ItemState.DELAYED, idl.ItemState.BEHIND)


class _Asked(NamedTuple):
    """What an enqueue reads of a call."""

    request: Any


class _Look:
    """A GetItem of this host."""

    method = "GetItem"
    within = None

    def __init__(self, request: Any, done: Callable[[Any], None]) -> None:
        self.request = request
        self._done = done

    def reply(self, response: Any) -> bool:
        self._done(response)
        return True

    def fail(self, error: FoqsError) -> bool:
        self._done(error)
        return True


class Schedules:
    """`items` and `lookups` are this host's."""

    def __init__(self, host: Host, items: ItemLife, lookups: Lookups, timers: Timers) -> None:
        self._host = host
        self._items = items
        self._lookups = lookups
        self.scheduler = Scheduler(host.engine, timers, host.forwarder.slots, self.fire, self.lives)

    def handlers(self) -> dict[str, Callable[[Call], None]]:
        return {"ListSchedules": self.list_schedules, "RunSchedule": self.run}

    def list_schedules(self, call: Call) -> None:
        """Raises Invalid, Overloaded."""
        host, request, limits = self._host, call.request, self._host.limits
        host.refuse_when_full()
        ns = validation.name(request.ns, "ns", limits)
        prefix = validation.text(request.prefix or "", "prefix")
        limit = validation.within(request.limit, "limit", 1, _MOST_LISTED, _LISTED)
        parts = parts_of(request.cursor, (str,))
        after, now_ms = "" if parts is None else parts[0], host.now_ms()
        entries = host.engine.state.policies.schedules.get(ns, {})
        names = sorted(name for name in entries if name.startswith(prefix) and name > after)[:limit]
        rows: dict[str, Any] = {}

        def add(address: str, response: Any) -> None:
            for row in response.schedules:
                if row.name in rows and row.coordinator:
                    mine = rows[row.name]
                    mine.last_at_ms, mine.last_id, mine.missed = row.last_at_ms, row.last_id, row.missed
                    mine.coordinator, mine.error = row.coordinator, row.error

        def done(missing: list[str]) -> None:
            cursor = cursor_of(names[-1]) if len(names) == limit else None
            call.reply(idl.ListSchedulesResponse(list(rows.values()), missing, cursor))

        part = partial(idl.ListSchedulesRequest, ns, request.prefix, request.limit, request.cursor)
        deadline_ms = now_ms + min(validation.timeout_ms(request, limits), ANSWER_MS)

        def work() -> Iterator[None]:
            for name in names:  # the next times of a rare schedule take 20 ms
                rows[name] = self._row(ns, name, entries[name], now_ms)
                yield
            host.forwarder.ask_others("ListSchedules", part, request, deadline_ms, add, done)

        host.engine.state.slices.begin(work())

    def _row(self, ns: str, name: str, entry: ScheduleEntry, now_ms: int) -> Any:
        here: Schedule | None = self.scheduler.here.get((ns, name))
        setting = entry.model_dump_json(exclude_unset=True)
        row = idl.ScheduleStats(name, setting, entry.next_times(now_ms), missed=0, paused=entry.paused, coordinator="")
        if here is not None and here.last_ms:
            row.coordinator, row.missed, row.error = self._host.address(), here.missed, here.error or None
            if here.last_id:
                row.last_at_ms, row.last_id = here.fired_ms or None, here.last_id
        return row

    def run(self, call: Call) -> None:
        """Raises Invalid, NotFound, Unavailable, Overloaded."""
        host, request = self._host, call.request
        ns = validation.name(request.ns, "ns", host.limits)
        name = validation.name(request.name, "name", host.limits)
        entry = host.engine.state.policies.schedules.get(ns, {}).get(name)
        if entry is None:
            raise NotFound(f"there is no schedule {name!r}: put the setting {SCHEDULE}{name}")
        spec = _spec(entry, name, request.dedup_key)

        def done(outcome: int | FoqsError) -> None:
            if isinstance(outcome, FoqsError):
                call.fail(outcome)
            else:
                call.reply(idl.RunScheduleResponse(int(outcome)))

        self._store(idl.EnqueueRequest(ns, [spec], request.context), done)

    def fire(self, ns: str, name: str, entry: ScheduleEntry, at_ms: int, fired: Fired) -> None:
        """Store the item of a time, unless that was done before."""
        spec = _spec(entry, name, item_key(name, at_ms))
        spec.headers[TIME_HEADER] = str(at_ms)
        if entry.jitter_ms:
            spec.deliver_after_ms = at_ms + _share(spec.dedup_key, entry.jitter_ms)
        self._store(idl.EnqueueRequest(ns, [spec], idl.RequestContext(timeout_ms=_ENQUEUE_MS)), fired)

    def _store(self, request: Any, done: Fired) -> None:
        try:
            asked: Any = _Asked(request)
            self._items.enqueue(asked, lambda outcomes: done(outcomes[0]))
        except FoqsError as error:
            done(bare(error))

    def lives(self, item_id: int, done: Lives) -> None:
        """Say whether an item has not ended."""

        def looked(outcome: Any) -> None:
            if isinstance(outcome, NotFound):
                done(False)
            elif isinstance(outcome, FoqsError):
                done(outcome)
            else:
                done(outcome.item.state in _LIVING and outcome.item.failure is None)

        call: Any = _Look(idl.GetItemRequest(item_id, context=idl.RequestContext(timeout_ms=_ENQUEUE_MS)), looked)
        try:
            self._lookups.get_item(call)
        except FoqsError as error:
            done(bare(error))


def _spec(entry: ScheduleEntry, name: str, dedup_key: str | None) -> Any:
    rules = None if entry.rules is None else responses.rules_struct(entry.rules.rules())
    return idl.ItemSpec(
        entry.topic,
        entry.body(),
        headers={**(entry.headers or {}), NAME_HEADER: name},
        priority=entry.priority,
        fairness_key=entry.fairness_key,
        throttle_keys=list(entry.throttle_keys) or None,
        rules=rules,
        dedup_key=dedup_key,
    )


def _share(key: str, most_ms: int) -> int:
    """Return a time up to `most_ms`, the same for the same key."""
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest()) % (most_ms + 1)
