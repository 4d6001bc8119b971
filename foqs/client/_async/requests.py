"""How a call becomes requests: the part for each host, what may be repeated, and the outcome of each item.

A call is a look-up, or a batch of items with an outcome each (`ItemTask`). `foqs.second_answer` says what may be
repeated.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable, Mapping, Sequence, Sized
from functools import partial
from time import monotonic
from typing import Any

from foqs.checks import LONGEST_MS, check_int
from foqs.client import methods
from foqs.client._async.caller import Caller
from foqs.client._async.connection import Connection
from foqs.client._async.router import Router
from foqs.client._async.waits import Owner  # async only
from foqs.client.call import AGAIN, Busy, First, id_of, requests_of
from foqs.client.key_order import KeyOrder, breaks, held, key_of
from foqs.client.methods import current
from foqs.client.per_worker import Ask, Places, Share
from foqs.client.routes import Address, Part, Routes, hash_slot
from foqs.errors import (
    FoqsError,
    Invalid,
    NotFound,
    NotServed,
    OutcomeUnknown,
    RequestTooLarge,
    StaleLease,
    item_error,
    named,
)
from foqs.second_answer import KEYED, LOOK, Policy, Verdict, judge, last_word, unknown
from foqs.travel import bare
from foqs.wire.client_codec import RemoteMethod
from foqs.wire.protocol import Unencodable, encode_struct

_REQUEST_OVERHEAD_BYTES = 8_192
_MANY = 100
"""New items that are worth a moment's wait for the routing."""
_ENDS_LEASES = (methods.ACK, methods.NACK, methods.DELETE)

Split = Callable[[Sequence[int], Mapping[int, Address]], Sequence[Part]]
"""(indices of items, by index the host that does not serve its shard) -> the parts to ask, each with its hosts."""


class ItemTask:
    """The items of one request, and the outcome of each.

    `outcomes[i]` is None, or the id for an enqueue, when item i was done, and an error otherwise. `pending`
    are the items to ask for again, `errors` their last errors, `doubtful` items that may have been
    done already.
    """

    def __init__(
        self,
        requests: Requests,
        method: RemoteMethod,
        policy: Policy,
        items: Sequence[Any],
        deadline: float,
        first: First | None = None,
        after: dict[int, Any] | None = None,
    ) -> None:
        """After `first`, the task continues that call. `after` gets what happens to failed items, by their ids."""
        self.begun = monotonic() if first is None else first.begun
        self.deadline = deadline
        self.outcomes: list[Any] = [None] * len(items)
        self.pending: Sequence[int] = range(len(items))
        self.errors: dict[int, FoqsError] = {}
        self.doubtful: set[int] = set()
        self._requests = requests
        self._caller = requests.caller
        self._method = method
        self._policy = policy
        self._items = items
        self._split = requests.split_of(method, policy, items)
        self._request_id = current() if first is None else first.request_id
        self._first = first
        self._refused: dict[int, Address] = {}
        self._after = after
        ordered = method is methods.ENQUEUE and bool(items and items[0].order_key)
        self._order = KeyOrder(items) if ordered else None

    async def run(self) -> list[Any]:
        """Ask until all items have outcomes, or the time has ended. Return the outcomes; a pending item gets its last
        error."""
        tries = 0
        while not await self._attempt():
            tries += 1
            error = next(iter(self.errors.values()))
            hints = [one.retry_after_ms for one in self.errors.values() if one.retry_after_ms is not None]
            if not await self._caller.again(tries, error, max(hints, default=None), self.begun, self.deadline):
                break
        for i in self.pending:
            self.outcomes[i] = last_word(self._policy, self.errors[i], i in self.doubtful)
        return self.outcomes

    async def _attempt(self) -> bool:
        """Ask once. Return True if no item is left to ask for."""
        asked, self.pending, self.errors = self.pending, [], {}
        if self._order is not None:
            self._order.begin()
        first, self._first = self._first, None
        if first is not None:
            self._found(asked, first.found, first.by)
        else:
            waiting = deque(self._split(asked, self._refused))
            while waiting:
                await self._ask_together(waiting)
        self.pending = sorted(self.errors)
        return not self.pending

    async def _ask_together(self, waiting: deque[Part]) -> None:
        """Send the parts of several hosts before the wait for an answer, as far as there are connections: one host
        that is slow, or silent, holds up no other's items. Take the asked parts out of `waiting`."""
        unanswered: deque[tuple[Part, Connection]] = deque()
        try:
            while waiting and (self._order is None or self._may_send(waiting, [part.asked for part, _ in unanswered])):
                part = waiting[0]
                try:
                    sent = await self._send(part, wait=not unanswered)
                except Unencodable as error:
                    waiting[0] = Part(part.to, self._encodable(part.asked, error))
                    if not waiting[0].asked:
                        waiting.popleft()
                    continue
                except RequestTooLarge as error:
                    if len(part.asked) > 1:  # the size of an item may have been estimated too low
                        half = len(part.asked) // 2
                        waiting[0] = Part(part.to, part.asked[half:])
                        waiting.appendleft(Part(part.to, part.asked[:half]))
                        continue
                    self._found(part.asked, bare(error))
                except FoqsError as error:
                    if unanswered and isinstance(error, Busy):
                        break
                    self._found(part.asked, bare(error))
                else:
                    unanswered.append((part, sent))
                waiting.popleft()
            while unanswered:
                await self._receive(*unanswered.popleft())
        finally:
            for _, left in unanswered:
                self._caller.give_up(left)

    async def _send(self, part: Part, *, wait: bool) -> Connection:
        items = self._items if len(part.asked) == len(self._items) else [self._items[i] for i in part.asked]
        return await self._caller.send(
            self._method,
            self._requests.request_of(self._method, items),
            self.deadline,
            repeatable=self._policy.repeatable,
            to=part.to,
            wait=wait,
            request_id=self._request_id,
        )

    async def _receive(self, part: Part, asked: Connection) -> None:
        try:
            response = await self._caller.receive(asked)
            found: Sequence[Any] | FoqsError = response.outcomes or ()
        except FoqsError as error:
            found = bare(error)
        self._found(part.asked, found, asked.address)

    def _found(self, asked: Sequence[int], found: Sequence[Any] | FoqsError, by: Address | None = None) -> None:
        if not isinstance(found, FoqsError) and len(found) != len(asked):
            wrong = f"the server gave {len(found)} outcomes for {len(asked)} items"
            found = named(OutcomeUnknown(wrong), self._request_id)
        if isinstance(found, FoqsError):
            for i in asked:
                self._failed(i, found)
            return
        for i, answer in zip(asked, found, strict=True):
            if answer.error is None:
                self.outcomes[i] = id_of(answer) if self._method is methods.ENQUEUE else None
                if self._after is not None and answer.after is not None:
                    self._after[self._items[i].id] = answer.after
                continue
            error = named(item_error(answer.error), self._request_id)
            self._failed(i, error)
            if by is not None and isinstance(error, NotServed):
                self._refused[i] = by

    def _failed(self, i: int, error: FoqsError) -> None:
        """Keep the error of item i: in `errors` when the item will be retried."""
        verdict = judge(self._policy, error, i in self.doubtful)
        if self._order is not None and breaks(error):
            self._order.note(i, again=verdict in AGAIN)
        if verdict in AGAIN:
            self.errors[i] = error
            if verdict is Verdict.AGAIN_DOUBTFUL:
                self.doubtful.add(i)
        elif verdict is not Verdict.DONE:
            self.outcomes[i] = unknown(error) if verdict is Verdict.UNKNOWN else error

    def _may_send(self, waiting: deque[Part], unanswered: Iterable[Sequence[int]]) -> bool:
        """Return True if the order of keys allows to send the first part of `waiting` before the answers for the items
        `unanswered`. Leave out items behind one that is not stored: if that is tried again, they are, too."""
        order = self._order
        assert order is not None
        while waiting:
            to, asked = waiting[0]
            ready = []
            for i in asked:
                if order.is_behind(i, order.failed):
                    self.outcomes[i] = held()
                elif order.is_behind(i, order.waiting):
                    self.errors[i] = held()
                else:
                    ready.append(i)
            if ready:
                waiting[0] = Part(to, ready)
                return not order.share_a_key(ready, unanswered)
            waiting.popleft()
        return False

    def _encodable(self, asked: Sequence[int], error: Unencodable) -> list[int]:
        """Return the part of `asked` that can be sent: one item of a wrong type must not fail its neighbours."""
        good = []
        for i in asked:
            try:
                encode_struct(self._requests.request_of(self._method, [self._items[i]]))
                good.append(i)
            except Unencodable as own:
                self.outcomes[i] = bare(own)
        if len(good) < len(asked):
            return good
        for i in asked:  # it is the namespace or the token
            self.outcomes[i] = bare(error)
        return []


class Requests:
    """The requests of one client. `timeout_ms` is the timeout of requests that are given none."""

    def __init__(self, caller: Caller, router: Router, places: Places, namespace: str, timeout_ms: int) -> None:
        self.caller = caller
        self.router = router
        self.places = places
        self.namespace = namespace
        self.owner = Owner()  # async only
        self._timeout_ms = timeout_ms

    def deadline(self, timeout_ms: int | None) -> float:
        """Return the end of a call that begins now, on the monotonic clock in seconds. Raises Invalid."""
        if timeout_ms is None:
            return monotonic() + self._timeout_ms / 1000
        check_int("timeout_ms", timeout_ms, 1, LONGEST_MS)
        return monotonic() + timeout_ms / 1000

    async def look(self, ask: Callable[[str], Awaitable[Any]], deadline: float, policy: Policy = LOOK) -> Any:
        """Return what `ask` returns for the id of the call. It is called again as `policy` says."""
        self.owner.check()  # async only
        if not self.router.begun:
            self.router.begin()
        begun, request_id, tries = monotonic(), current(), 0
        while True:
            try:
                return await ask(request_id)
            except FoqsError as error:
                failed = bare(error)
            tries += 1
            again = judge(policy, failed, doubtful=False) in AGAIN
            if not again or not await self.caller.again(tries, failed, failed.retry_after_ms, begun, deadline):
                try:
                    raise last_word(policy, failed, doubtful=False)
                finally:
                    del failed  # or it would hold itself, by this frame

    async def call(
        self,
        method: RemoteMethod,
        request: Any,
        timeout_ms: int | None,
        item_id: int | None = None,
        *,
        policy: Policy = LOOK,
        wait_ms: int = 0,
    ) -> Any:
        """Return the response to a request without items. It goes to the owner of `item_id`, if that is given. A
        request that the host may answer after `wait_ms` has a `wait_ms`."""
        wait_until = monotonic() + wait_ms / 1000
        deadline = self.deadline(timeout_ms) + wait_ms / 1000

        async def attempt(request_id: str) -> Any:
            to, left_ms = self.router.order_for(item_id), 0.0
            if wait_ms:
                left_ms = max(0.0, (wait_until - monotonic()) * 1000)
                request.wait_ms = int(left_ms)
            return await self.caller.ask(
                method, request, deadline, repeatable=policy.repeatable, to=to, request_id=request_id, wait_ms=left_ms
            )

        return await self.look(attempt, deadline, policy)

    async def pages(self, method: RemoteMethod, request: Any, timeout_ms: int | None) -> AsyncIterator[Any]:
        """Yield the responses to a request with a cursor, each for the next page."""
        while True:
            response = await self.call(method, request, timeout_ms)
            yield response
            if not response.cursor:
                return
            request.cursor = response.cursor

    async def first(
        self, method: RemoteMethod, policy: Policy, request: bytes, to: Sequence[Address], timeout_ms: int | None
    ) -> Any:
        """Send the request of a call for one item. Return the item's outcome if it succeeded, else a `First` for
        `each`."""
        self.owner.check()  # async only
        if not self.router.begun:
            self.router.begin()
        begun = monotonic()
        deadline = self.deadline(timeout_ms) if timeout_ms is not None else begun + self._timeout_ms / 1000
        request_id = current()
        caller = self.caller
        try:
            asked = await caller.send(
                method, request, deadline, repeatable=policy.repeatable, to=to, request_id=request_id
            )
            response = await caller.receive(asked)
            outcomes: Sequence[Any] = response.outcomes or ()
        except FoqsError as error:
            return First(begun, deadline, request_id, bare(error))
        if len(outcomes) == 1 and outcomes[0].error is None:
            return outcomes[0]
        return First(begun, deadline, request_id, outcomes, asked.address)

    async def each(
        self,
        method: RemoteMethod,
        policy: Policy,
        items: Iterable[Any],
        timeout_ms: int | None,
        first: First | None = None,
        after: dict[int, Any] | None = None,
    ) -> list[Any]:
        """Return the outcome of each item. With the `first` request of the call, for its one item, the call continues
        from there. `after` is for nacks: it gets what happens to items that failed, by their ids."""
        by_id = method is methods.DELETE

        async def send(chunk: Sequence[Any]) -> list[Any]:
            deadline = self.deadline(timeout_ms) if first is None else first.deadline
            done = await ItemTask(self, method, policy, chunk, deadline, first, after).run()
            if self.places.remembered and method in _ENDS_LEASES:
                ended = [item for item, outcome in zip(chunk, done, strict=True) if outcome is None]
                self.places.left(ended if by_id else [item.id for item in ended])
            return done

        self.owner.check()  # async only
        if not self.router.begun:
            self.router.begin()
        if method is methods.ENQUEUE and isinstance(items, Sized) and len(items) >= _MANY:
            await self.router.wait(self.deadline(timeout_ms))
        chunks = list(requests_of(items, self.caller.max_frame_bytes - _REQUEST_OVERHEAD_BYTES))
        if len(chunks) > 1 and method is methods.ENQUEUE and chunks[0][0].order_key:
            return await in_order(chunks, send)
        if len(chunks) == 1 or method is methods.ENQUEUE:
            return [outcome for chunk in chunks for outcome in await send(chunk)]
        if by_id or method is methods.CHANGE:
            return await one_by_one(chunks, lambda item: item, send)
        return await one_by_one(chunks, lambda item: (item.id, item.lease), send)

    def request_of(self, method: RemoteMethod, items: Sequence[Any]) -> Any:
        if method is methods.DELETE:
            return method.request(ids=items)
        if method is methods.CHANGE:
            return methods.change_request(items)
        return method.request(ns=self.namespace, items=items)

    def split_of(self, method: RemoteMethod, policy: Policy, items: Sequence[Any]) -> Split:
        """Return which host gets which of `items`: the owner of the shard of their ids, dedup keys or order keys; for
        other new items, hosts in turn."""
        if policy is KEYED:
            slots = [hash_slot(self.namespace, spec.dedup_key) for spec in items]
            return partial(self.router.split, Routes.owner_of_hash_slot, slots)
        if method is methods.ENQUEUE:
            if not (items and items[0].order_key):
                return self.router.spread
            slots = [hash_slot(self.namespace, spec.order_key) for spec in items]
            return partial(self.router.split, Routes.owner_of_hash_slot, slots)
        ids = items if method is methods.DELETE else [item.id for item in items]
        return partial(self.router.split, Routes.owner, ids)


async def in_order(
    chunks: Iterable[Sequence[Any]], send: Callable[[Sequence[Any]], Awaitable[Sequence[Any]]]
) -> list[Any]:
    """Return the outcome of each item with an order key of several requests. An item is sent when the items of its key
    in earlier requests are stored."""
    broken: set[Hashable] = set()
    outcomes: list[Any] = []
    for chunk in chunks:
        ready = [spec for spec in chunk if key_of(spec) not in broken]
        answers = iter(await send(ready) if ready else ())
        found = [held() if key_of(spec) in broken else next(answers) for spec in chunk]
        broken.update(key_of(spec) for spec, outcome in zip(chunk, found, strict=True) if breaks(outcome))
        outcomes += found
    return outcomes


async def one_by_one(
    chunks: Iterable[Sequence[Any]],
    end_of: Callable[[Any], Hashable],
    send: Callable[[Sequence[Any]], Awaitable[Sequence[Any]]],
) -> list[Any]:
    """Return the outcome of each entry of several requests, as one request for all of them would give it.

    An entry that an earlier request had is not sent again. Another entry with the same `end_of` is: it may be wrong."""
    known: dict[Hashable, tuple[Any, Any]] = {}  # by end: the first entry that was not wrong, and its outcome
    outcomes: list[Any] = []
    for chunk in chunks:
        before = [known.get(end_of(entry)) for entry in chunk]
        new = [entry for entry, old in zip(chunk, before, strict=True) if old is None or old[0] != entry]
        answers = iter(await send(new) if new else ())
        for entry, old in zip(chunk, before, strict=True):
            if old is not None and old[0] == entry:
                outcome = old[1]
            else:
                outcome = next(answers)
                if old is None and not isinstance(outcome, Invalid):
                    known.setdefault(end_of(entry), (entry, outcome))
                elif old is not None and old[1] is None and isinstance(outcome, StaleLease | NotFound):
                    outcome = None  # the earlier entry has ended the lease
            outcomes.append(outcome)
    return outcomes


async def with_places(
    places: Places,
    counts: Mapping[str, int],
    holder: Share | Mapping[str, int],
    until: float,
    request: Callable[[Ask], Awaitable[Any]],
) -> Any:
    """Return the response to `request`, which is sent again when the process may have more items of a topic than it
    said. `until` is of the monotonic clock, in seconds."""
    while True:
        ask = places.ask(counts, holder, wait=monotonic() < until)
        response = None
        try:
            response = await request(ask)
        finally:
            ask.end(response)
        if ask.stopped or not (ask.cut or ask.learned) or response.items or response.doubtful or monotonic() >= until:
            return response
        holder = holder if ask.share is not None else ask.given
