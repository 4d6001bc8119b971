"""The leases a worker holds: from the moment it got an item until the server has its ack or nack. They are extended
while they are held, and the time limits of handlers are looked at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from time import monotonic

from foqs.client._async.client import AsyncClient
from foqs.client._async.job import Held
from foqs.client._async.waits import (
    CANCEL_S,
    TIMEOUT_MAX,
    Background,
    Condition,
    Mutex,
    of_process,
    renew_after_fork,
    run_to_end,
)
from foqs.client.guard import SafeLog, is_a
from foqs.client.items import Extension, Item
from foqs.client.per_worker import Share
from foqs.errors import FoqsError, Invalid, NotFound, StaleLease
from foqs.rows import LOG_BYTES

log = SafeLog()

EXTEND_AFTER = 1 / 3
"""A lease is extended after this part of it; the rest leaves time for more tries."""
RETRY_AFTER = 1 / 10
CALL_AT_MOST = 1 / 4
SAY_AFTER_S = 0.05
"""What handlers say in this time goes in one request. A host writes it up to a second later."""
_LONGEST_CALL_S = 2.0
_SHORTEST_CALL_S = 0.05
_BEGUN_TIMEOUT_MS = 1_000
_TELL_TIMEOUT_MS = 2_000


class Leases:
    """Never holds more than `capacity`, if `add` is given what `room` allowed. `share` counts the items
    that a worker holds; without it they are counted nowhere. `handlers` is the number of handlers of the worker.
    `broken(error)` is called when the task that extends the leases has ended."""

    def __init__(
        self,
        client: AsyncClient,
        lease_ms: int,
        capacity: int,
        share: Share | None = None,
        *,
        handlers: float = inf,
        broken: Callable[[BaseException], object] = lambda error: None,
    ) -> None:
        self.share = share
        self.client = client
        self.lease_ms = lease_ms
        self.capacity = capacity
        self.change = Condition()
        self.limits = TimeLimits(handlers, self.change)
        self.broken = broken
        self._held: dict[int, Held] = {}
        self._begun: list[Held] = []
        self._reporting = Mutex()
        self._telling = Mutex()
        self._extender = extender()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def watched(self) -> bool:
        """True while there is a lease to extend, or a time limit to watch."""
        return bool(self._held or len(self.limits))

    @property
    def room(self) -> int:
        return self.capacity - len(self._held)

    def unsettled(self) -> int:
        """Return how many of the items wait for a handler, or are at work."""
        with self.change:
            return sum(not held.settling for held in self._held.values())

    def add(self, items: Sequence[Item], *, overdue: bool = False) -> list[Held]:
        """Hold items that were just received; `overdue`: some time ago, so their leases are extended at once."""
        now = monotonic()
        lease_s = self.lease_ms / 1000
        extend_at = now if overdue else now + lease_s * EXTEND_AFTER
        added = [Held(item, now + lease_s, extend_at) for item in items]
        with self.change:
            # An item delivered again, such as after a crash of its shard's owner, has lost its earlier lease here.
            before = [old for held in added if (old := self._held.get(held.id)) is not None and not old.settling]
            self._held.update((held.id, held) for held in added)
        for old in before:
            old.end()
        self._extender.watch(self, extend_at)
        return added

    def remove(self, ended: Iterable[Held]) -> None:
        """Remove leases: the server has the ack or nack of the items, or they were given up."""
        ended = list(ended)
        for held in ended:
            if held.traced is not None:
                held.traced.end()
        with self.change:
            gone = {held.id for held in ended if self._held.get(held.id) is held}
            for item_id in gone:
                del self._held[item_id]
            self.change.notify_all()
        if self.share is not None:
            self.share.remove(gone)

    def abandon(self) -> None:
        """Stop extending: the leases still held run out."""
        with self.change:
            left = list(self._held.values())
        self.remove(left)
        self._extender.look()
        if self.share is not None:
            self.share.clear()

    async def extend(self, held: Held, lease_ms: int) -> None:
        """Extend one lease at once. Raises StaleLease or NotFound when it is lost."""
        sent, asked = monotonic(), held.asked
        try:
            await self.client.extend(held, lease_ms)
        except (StaleLease, NotFound):
            held.end()
            raise
        with self.change:
            _extended(held, asked, sent, lease_ms / 1000)
        self._extender.watch(self, held.extend_at)

    def say(self, held: Held, said: Extension) -> None:
        """Have `said` sent, with what else the handler says until then."""
        with self.change:
            if held.gone or held.settling:
                return
            if held.said is not None:
                held.said = _joined(held.said, said)
                return
            held.said = said
            held.say_at = monotonic() + SAY_AFTER_S
        self._extender.watch(self, held.say_at)

    async def tell_rest(self, held: Held) -> None:
        """Send what the handler said last, before its outcome. Return when the server knows, or did not answer."""
        async with self._telling:
            with self.change:
                said, held.said = held.said, None
            if said is None or held.gone:
                return
            (error,) = await self.client.extend_many([said], timeout_ms=_TELL_TIMEOUT_MS)
        if isinstance(error, StaleLease | NotFound):
            self.lost(held, error)
        elif error is not None:
            log.warning("the last checkpoint, progress or log of %s is lost: %s", held, error.message)

    async def extend_due(self) -> float:
        """Extend the leases that are due, and look at the time limits. Return when to come again."""
        now = monotonic()
        look_at = self.limits.look(now)
        with self.change:
            over = [held for held in self._held.values() if held.late and _end_at(held) <= now]
            due = [held for held in self._held.values() if _due(held, now)]
        for held in over:
            held.end()
        if due:
            await self._extend_many(due, now)
        with self.change:
            return min(look_at, min(map(_next_at, self._held.values()), default=inf))

    def limit(self, held: Held, limit_s: float) -> None:
        """Give the work on the item `limit_s`: then `time_is_up` is set, and the lease is no longer extended."""
        now = monotonic()
        self.limits.begin(held, now, now + limit_s)
        self._extender.watch(self, now + limit_s)

    def work_ended(self, held: Held) -> None:
        """Take the end of the handler that `limit` was called for."""
        self.limits.end(held)
        if not self.watched:
            self._extender.look()

    async def _extend_many(self, due: list[Held], now: float) -> None:
        lease_s = self.lease_ms / 1000
        first_end_s = min((held.expires - now for held in due if held.expires > now), default=lease_s)
        call_s = max(_SHORTEST_CALL_S, min(lease_s * CALL_AT_MOST, first_end_s, _LONGEST_CALL_S))
        async with self._telling:
            with self.change:
                asked = [_Asked(held, self.lease_ms, now) for held in due if _due(held, now)]
            entries = [one.entry for one in asked]
            outcomes = await self.client.extend_many(entries, timeout_ms=int(call_s * 1000)) if entries else []
            with self.change:  # a handler's own extension may be answered just now
                for one, error in zip(asked, outcomes, strict=True):
                    if not isinstance(error, StaleLease | NotFound):
                        one.answered(error, lease_s)
        for one, error in zip(asked, outcomes, strict=True):
            if isinstance(error, StaleLease | NotFound):
                self.lost(one.held, error)

    async def report_begun(self, held: Held) -> None:
        """Tell the server that work on an item that waited is about to begin: if it kills the process, the item has
        used an attempt, and the items behind it have not. Return when the server knows, or did not answer in time.
        Tasks that come during a request share the next one."""
        with self.change:
            self._begun.append(held)
        async with self._reporting:
            with self.change:
                begun, self._begun = self._begun, []
            if not begun:  # another task's request had it
                return
            outcomes = await self.client.begun_many(begun, timeout_ms=_BEGUN_TIMEOUT_MS)
            for one, error in zip(begun, outcomes, strict=True):
                if isinstance(error, StaleLease | NotFound):
                    self.lost(one, error)

    def lost(self, held: Held, error: FoqsError) -> None:
        """Take an answer of the server that the lease has ended."""
        if held.settling or held.late:  # it may be just this worker's ack that ended the lease: its own outcome decides
            held.extend_at = inf
        elif self._held.get(held.id) is held:
            log.warning("lost the lease of %s: %s", held, error.message)
            held.end()
            if isinstance(error, NotFound):  # async only
                held.cancel()  # its work is not wanted: the item was deleted


class TimeLimits:
    """The handlers of one worker that have a time limit, and those that exceed it. The lock of the worker's leases
    guards it. `found` gets each item whose work exceeds its limit, and the seconds that it took so far, once, from the
    task that calls `look`, without the lock."""

    def __init__(self, handlers: float, change: Condition) -> None:
        self.found: Callable[[list[tuple[Held, float]]], object] = lambda over: None
        self.handlers = handlers
        self._change = change
        self._begun: dict[Held, float] = {}
        self._over: set[Held] = set()

    def __len__(self) -> int:
        """How many handlers are at work."""
        return len(self._begun)

    @property
    def all_hang(self) -> bool:
        """True if all handlers of the worker are over their limits."""
        return len(self._over) >= self.handlers

    @property
    def items_over(self) -> int:
        """How many items have no outcome yet because handlers are over their limit."""
        with self._change:
            return len({held.id for held in self._over if not held.settling})

    def begin(self, held: Held, now: float, stop_at: float) -> None:
        """Watch the work on the item, which has until `stop_at`."""
        held.time_is_up()
        held.stop_at = stop_at
        with self._change:
            self._begun[held] = now

    def end(self, held: Held) -> None:
        """Stop the watch. Tell the worker: it takes nothing while all its handlers hang."""
        with self._change:
            self._begun.pop(held, None)
            if held in self._over:
                self._over.discard(held)
                self._change.notify_all()

    def look(self, now: float) -> float:
        """Set `time_is_up` of the work that exceeds its limit: its lease is no longer extended. Return when to look
        again, `inf` if there is no need."""
        found = []
        next_at = inf
        with self._change:
            for held, begun_at in self._begun.items():
                if held in self._over or held.stop_at is None:
                    continue
                if held.stop_at > now:
                    next_at = min(next_at, held.stop_at)
                    continue
                held.late = True
                held.time_is_up().set()
                held.cancel()  # async only
                if held.stop_at + CANCEL_S > now:
                    next_at = min(next_at, held.stop_at + CANCEL_S)
                    continue
                self._over.add(held)
                found.append((held, now - begun_at))
        if found:
            self.found(found)
        return next_at

    def over(self) -> Counter[str]:
        """Return how many handlers are over their limit now, by the topics of their items."""
        with self._change:
            return Counter(held.topic for held in self._over)


class _Asked:
    """One request to extend a lease, or to keep what its handler said."""

    def __init__(self, held: Held, lease_ms: int, now: float) -> None:
        self.held = held
        self._extends = held.extend_at <= now and not held.late
        self._said, held.said = held.said, None
        self._asked = held.asked
        self._sent = now
        lease = lease_ms if self._extends else None
        self.entry = Extension.of(held, lease) if self._said is None else replace(self._said, lease_ms=lease)

    def answered(self, error: FoqsError | None, lease_s: float) -> None:
        held, now = self.held, monotonic()
        if error is not None and not is_a(error, Invalid) and self._said is not None:
            held.said = self._said if held.said is None else _joined(self._said, held.said)
            held.say_at = now + lease_s * RETRY_AFTER
        if is_a(error, Invalid) and self._said is not None:
            log.warning("the server refused a checkpoint, progress or log of %s: %s", held, error)
        if self._extends and error is None:
            _extended(held, self._asked, self._sent, lease_s)
        elif self._extends and error is not None:
            _not_extended(held, error, now, lease_s)


def _joined(said: Extension, later: Extension) -> Extension:
    """Return what a handler said at two times as one."""
    lines = [*(said.log or ()), *(later.log or ())]
    size = sum(map(_line_bytes, lines))
    while size > LOG_BYTES:  # the last ones stay, at the server as well
        size -= _line_bytes(lines.pop(0))
    return replace(
        said,
        checkpoint=said.checkpoint if later.checkpoint is None else later.checkpoint,
        progress=later.progress or said.progress,
        log=lines or None,
    )


def _line_bytes(line: str) -> int:
    return len(line.encode()) + 1


def _due(held: Held, now: float) -> bool:
    """Return True if it is time to extend the lease, or if its handler has said something."""
    if held.gone:
        return False
    return (held.extend_at <= now and not held.late) or (held.said is not None and held.say_at <= now)


def _next_at(held: Held) -> float:
    """Return when the lease is extended, when its handler, whose time is up, learns that it has ended, or when to send
    what a handler said."""
    if held.gone:
        return inf
    say_at = inf if held.said is None else held.say_at
    return min(say_at, _end_at(held) if held.late else held.extend_at)


def _end_at(held: Held) -> float:
    """Return when the lease of a handler whose time is up ends."""
    return inf if held.gone or held.settling else held.expires


def _extended(held: Held, asked: int, sent: float, lease_s: float) -> None:
    """Note an extension. `asked` is the count when it was sent."""
    expires, extend_at = sent + lease_s, sent + lease_s * EXTEND_AFTER
    if held.asked != asked:  # two extensions crossed: the server may have carried out either of them last
        expires, extend_at = min(expires, held.expires), min(extend_at, held.extend_at)
    held.asked += 1
    held.expires, held.extend_at = expires, extend_at


def _not_extended(held: Held, error: FoqsError, now: float, lease_s: float) -> None:
    held.asked += 1
    held.extend_at = now + lease_s * RETRY_AFTER
    if now >= held.expires:
        log.warning("could not extend the lease of %s in time: %s", held, error.message)
        held.tell()


class Extender:
    """At work while there is a lease to extend. All workers of a process with threads share one."""

    def __init__(self) -> None:
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        self._change = Condition()
        self._watched: set[Leases] = set()
        self._wake_at = inf  # the earliest time given since the last round of visits began
        self._extending = Background("foqs-extender", partial(run_to_end, self._failed, self._run))

    def watch(self, leases: Leases, extend_at: float) -> None:
        """Called whenever there are leases to extend at `extend_at` that were not there before."""
        with self._change:
            self._watched.add(leases)
            self._extending.begin()
            if extend_at < self._wake_at:
                self._wake_at = extend_at
                self._change.notify()

    def look(self) -> None:
        """Called when there may be no more leases to extend."""
        with self._change:
            self._wake_at = 0.0
            self._change.notify()

    def _failed(self, error: BaseException) -> None:
        """End the workers that hold leases: their extensions have ended."""
        with self._change:
            watched, self._watched, self._extending.running = self._watched, set(), False
        for leases in watched:
            if leases.watched:
                leases.broken(error)

    async def _run(self) -> None:
        while watched := self._next_round():
            for leases in watched:
                next_at = await self._visit(leases)
                with self._change:
                    self._wake_at = min(self._wake_at, next_at)
            with self._change:
                while (left := self._wake_at - monotonic()) > 0:
                    await self._change.wait(min(left, TIMEOUT_MAX))

    def _next_round(self) -> list[Leases]:
        with self._change:
            self._watched = {leases for leases in self._watched if leases.watched}
            self._wake_at = inf
            self._extending.running = bool(self._watched)
            return list(self._watched)

    async def _visit(self, leases: Leases) -> float:
        """Extend the leases that are due. Return when to come back."""
        try:
            return await leases.extend_due()
        except Exception as error:
            log.error("extending leases failed; trying again", exc_info=error)
            return monotonic() + leases.lease_ms / 1000 * RETRY_AFTER


extender = of_process(Extender)
