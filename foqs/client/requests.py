"""How a client asks: which host gets which part of a request, and which requests are repeated.

The two kinds of call: one look, or a batch of items with an outcome each. Each records which items
have an outcome, which may be retried, and which have an unknown outcome.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Sized
from time import monotonic
from typing import Any, NamedTuple, TypeVar

from foqs.bounds import Limits
from foqs.checks import LONGEST_MS, check_int
from foqs.client import methods
from foqs.client.caller import Asked, Busy, Caller, current
from foqs.client.connection import Address
from foqs.client.methods import ENQUEUE
from foqs.client.places import Places
from foqs.client.router import Router
from foqs.client.routes import Part
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
from foqs.ids import Duplicate
from foqs.second_answer import LOOK, ONCE, Policy, Verdict, judge, last_word, unknown
from foqs.travel import bare
from foqs.wire.client_codec import RemoteMethod
from foqs.wire.protocol import Unencodable, encode_struct

T = TypeVar("T")
_LIMITS = Limits()

Split = Callable[[Sequence[int], Mapping[int, Address]], Sequence[Part]]
"""(indices of items, by index the host that does not serve its shard) -> the parts to ask, each with its hosts."""
_AGAIN = (Verdict.AGAIN, Verdict.AGAIN_DOUBTFUL)


def id_of(answer: Any) -> int:
    """Return the id of an EnqueueOutcome."""
    return Duplicate(answer.id) if answer.duplicate else answer.id


class Look:
    """A call without outcomes per item, which is repeated as `policy` says. `ask` gets the id for its request."""

    def __init__(self, deadline: float, ask: Callable[[str], Any], policy: Policy = LOOK) -> None:
        self.deadline = deadline
        self.error: FoqsError | None = None
        self._ask = ask
        self._policy = policy
        self._request_id = current()
        self._response: Any = None

    @property
    def retry_after_ms(self) -> int | None:
        return self.error.retry_after_ms if self.error is not None else None

    def attempt(self) -> bool:
        try:
            self._response = self._ask(self._request_id)
        except FoqsError as error:
            self.error = bare(error)
            return judge(self._policy, error, doubtful=False) not in _AGAIN
        self.error = None
        return True

    def response(self) -> Any:
        """Return the response; raises the error of the last attempt."""
        if self.error is not None:
            error, self.error = self.error, None
            try:
                raise last_word(self._policy, error, doubtful=False)
            finally:
                del error  # or it would hold itself, by this frame
        return self._response


class Answers(NamedTuple):
    """The outcomes of all items of one request."""

    outcomes: Sequence[Any]
    request: Asked


class First(NamedTuple):
    """The first request of a call for one item, which did not succeed. `found`: its answers, or why there are none."""

    deadline: float
    request_id: str
    found: Answers | FoqsError


class ItemTask:
    """The items of one request, and the outcome of each.

    `outcomes[i]` is None, or the id for an enqueue, when item i was done, and an error otherwise. `pending`
    are the items to ask for again, `errors` their last errors, `doubtful` those that may have been
    done already.
    """

    def __init__(
        self,
        caller: Caller,
        method: RemoteMethod,
        policy: Policy,
        *,
        items: Sequence[Any],
        request: Callable[[Sequence[Any]], Any],
        split: Split,
        deadline: float,
        first: First | None = None,
    ) -> None:
        """`split` says which host to ask about which items. After `first`, the task continues that call."""
        self.deadline = deadline
        self.outcomes: list[Any] = [None] * len(items)
        self.pending: Sequence[int] = range(len(items))
        self.errors: dict[int, FoqsError] = {}
        self.doubtful: set[int] = set()
        self._caller = caller
        self._method = method
        self._policy = policy
        self._items = items
        self._request = request
        self._split = split
        self._request_id = current() if first is None else first.request_id
        self._first = first
        self._refused: dict[int, Address] = {}

    @property
    def error(self) -> FoqsError | None:
        return next(iter(self.errors.values()), None)

    @property
    def retry_after_ms(self) -> int | None:
        hints = (error.retry_after_ms for error in self.errors.values())
        return max((hint for hint in hints if hint is not None), default=None)

    def attempt(self) -> bool:
        asked, self.pending, self.errors = self.pending, [], {}
        first, self._first = self._first, None
        if first is not None:
            self._found(asked, first.found)
        else:
            waiting = deque(self._split(asked, self._refused))
            while waiting:
                self._ask_together(waiting)
        self.pending = sorted(self.errors)
        return not self.pending

    def _ask_together(self, waiting: deque[Part]) -> None:
        """Sends the parts of several hosts before it waits for an answer, as far as there are connections: one host
        that is slow, or silent, holds up no other's items. Takes the asked parts out of `waiting`."""
        under_way: deque[tuple[Part, Asked]] = deque()
        try:
            while waiting:
                part = waiting[0]
                try:
                    asked = self._send(part, wait=not under_way)
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
                    self._failed_whole(part.asked, error)
                except Busy as error:
                    if under_way:
                        break
                    self._failed_whole(part.asked, error)
                except FoqsError as error:
                    self._failed_whole(part.asked, error)
                else:
                    under_way.append((part, asked))
                waiting.popleft()
            while under_way:
                self._receive(*under_way.popleft())
        finally:
            for _, left in under_way:
                self._caller.give_up(left)

    def _send(self, part: Part, *, wait: bool) -> Asked:
        items = self._items if len(part.asked) == len(self._items) else [self._items[i] for i in part.asked]
        return self._caller.send(
            self._method,
            self._request(items),
            self.deadline,
            repeatable=self._policy.repeatable,
            to=part.to,
            wait=wait,
            request_id=self._request_id,
        )

    def _receive(self, part: Part, asked: Asked) -> None:
        try:
            found: Answers | FoqsError = Answers(self._caller.receive(asked).outcomes or (), asked)
        except FoqsError as error:
            found = bare(error)
        self._found(part.asked, found)

    def _found(self, asked: Sequence[int], found: Answers | FoqsError) -> None:
        if isinstance(found, FoqsError):
            self._failed_whole(asked, found)
        elif len(found.outcomes) != len(asked):
            wrong = OutcomeUnknown(f"the server gave {len(found.outcomes)} outcomes for {len(asked)} items")
            self._failed_whole(asked, named(wrong, found.request.request_id))
        else:
            self._answered(asked, found.outcomes, found.request)

    def _failed_whole(self, asked: Sequence[int], error: FoqsError) -> None:
        bare(error)
        for i in asked:
            self._failed(i, error)

    def _answered(self, asked: Sequence[int], answers: Sequence[Any], request: Asked) -> None:
        has_id = self._method is ENQUEUE
        for i, answer in zip(asked, answers, strict=True):
            if answer.error is None:
                self.outcomes[i] = id_of(answer) if has_id else None
                continue
            error = named(item_error(answer.error), request.request_id)
            self._failed(i, error)
            if isinstance(error, NotServed):
                self._refused[i] = request.connection.address

    def _failed(self, i: int, error: FoqsError) -> None:
        """Keep the error of item i: in `errors` when the item will be retried."""
        verdict = judge(self._policy, error, i in self.doubtful)
        if verdict in _AGAIN:
            self.errors[i] = error
            if verdict is Verdict.AGAIN_DOUBTFUL:
                self.doubtful.add(i)
        elif verdict is not Verdict.DONE:
            self.outcomes[i] = unknown(error) if verdict is Verdict.UNKNOWN else error

    def _encodable(self, asked: Sequence[int], error: Unencodable) -> list[int]:
        """Return those of `asked` that can be sent: one item of a wrong type must not fail its neighbours."""
        good = []
        for i in asked:
            try:
                encode_struct(self._request([self._items[i]]))
                good.append(i)
            except Unencodable as own:
                self.outcomes[i] = bare(own)
        if len(good) < len(asked):
            return good
        for i in asked:  # it is the namespace or the token
            self.outcomes[i] = bare(error)
        return []

    def closed(self) -> list[Any]:
        """Return all outcomes; a pending item gets its last error."""
        for i in self.pending:
            self.outcomes[i] = last_word(self._policy, self.errors[i], i in self.doubtful)
        return self.outcomes


def one_of(outcomes: list[T | FoqsError]) -> T:
    """Return the outcome of a call for one item, or raise it if it is an error."""
    outcome = outcomes.pop(0)
    if isinstance(outcome, FoqsError):
        try:
            raise outcome
        finally:
            del outcome  # or it would hold itself, by this frame
    return outcome


def requests_of(items: Iterable[T], max_bytes: int) -> Iterator[Sequence[T]]:
    """Cuts `items` into what one request holds; items that know their `size_bytes` are also cut by bytes."""
    everything: Sequence[T] = items if isinstance(items, list | tuple) else list(items)
    sized = bool(everything) and hasattr(everything[0], "size_bytes")
    if not sized or (len(everything) == 1):
        for start in range(0, len(everything), _LIMITS.request_items):
            yield everything[start : start + _LIMITS.request_items]
        return
    start = size = 0
    for position, item in enumerate(everything):
        item_bytes: int = item.size_bytes  # type: ignore[attr-defined]  # `sized` says so
        if position > start and (size + item_bytes > max_bytes or position - start == _LIMITS.request_items):
            yield everything[start:position]
            start, size = position, 0
        size += item_bytes
    yield everything[start:]


_REQUEST_OVERHEAD_BYTES = 8_192
_MANY = 100
"""New items that are worth a moment's wait for the routing."""
_ENDS_LEASES = (methods.ACK, methods.NACK, methods.DELETE)


class Requests:
    """The requests of one client. `timeout_ms` is the timeout of those that are given none."""

    places: Places

    def __init__(self, caller: Caller, router: Router, namespace: str, timeout_ms: int) -> None:
        self._caller = caller
        self._router = router
        self._namespace = namespace
        self._timeout_ms = timeout_ms

    def timeout_s(self, timeout_ms: int | None) -> float:
        """Raises Invalid."""
        if timeout_ms is None:
            return self._timeout_ms / 1000
        check_int("timeout_ms", timeout_ms, 1, LONGEST_MS)
        return timeout_ms / 1000

    def look(self, ask: Callable[[str], Any], deadline: float, policy: Policy = LOOK) -> Any:
        self._router.begin()
        look = Look(deadline, ask, policy)
        self._caller.finish(look)
        return look.response()

    def read(self, method: RemoteMethod, request: Any, timeout_ms: int | None, item_id: int | None = None) -> Any:
        deadline = monotonic() + self.timeout_s(timeout_ms)

        def attempt(request_id: str) -> Any:
            to = self._router.order_for(item_id)
            return self._caller.ask(method, request, deadline, repeatable=True, to=to, request_id=request_id)

        return self.look(attempt, deadline)

    def change(self, method: RemoteMethod, request: Any, timeout_ms: int | None) -> Any:
        """Send a request that is not repeated after a lost reply."""
        deadline = monotonic() + self.timeout_s(timeout_ms)

        def attempt(request_id: str) -> Any:
            to = self._router.order()
            return self._caller.ask(method, request, deadline, repeatable=False, to=to, request_id=request_id)

        return self.look(attempt, deadline, ONCE)

    def pages(
        self, method: RemoteMethod, request: Any, content: Callable[[Any], list[Any]], timeout_ms: int | None
    ) -> Iterator[Any]:
        while True:
            response = self.read(method, request, timeout_ms)
            yield from content(response) or ()
            if not response.cursor:
                return
            request.cursor = response.cursor

    def first(
        self, method: RemoteMethod, policy: Policy, request: bytes, to: Sequence[Address], timeout_ms: int | None
    ) -> Any:
        """Send the request of a call for one item. Return the item's outcome if it succeeded, else a `First` for
        `each`."""
        self._router.begin()
        deadline = monotonic() + self.timeout_s(timeout_ms)
        request_id = current()
        try:
            asked = self._caller.send(
                method, request, deadline, repeatable=policy.repeatable, to=to, request_id=request_id
            )
            outcomes: Sequence[Any] = self._caller.receive(asked).outcomes or ()
        except FoqsError as error:
            return First(deadline, request_id, bare(error))
        if len(outcomes) == 1 and outcomes[0].error is None:
            return outcomes[0]
        return First(deadline, request_id, Answers(outcomes, asked))

    def each(
        self,
        method: RemoteMethod,
        policy: Policy,
        items: Iterable[Any],
        splitting: Callable[[Sequence[Any]], Split],
        timeout_ms: int | None,
        first: First | None = None,
    ) -> list[Any]:
        """Return the outcome of each item. `splitting` says for the items of one request which host gets which. With
        the `first` request of the call, for its one item, the call goes on from there."""

        def request(chunk: Sequence[Any]) -> Any:
            if method is methods.DELETE:
                return method.request(ids=chunk)
            return method.request(ns=self._namespace, items=chunk)

        def send(chunk: Sequence[Any]) -> list[Any]:
            deadline = monotonic() + self.timeout_s(timeout_ms) if first is None else first.deadline
            task = ItemTask(
                self._caller, method, policy,
                items=chunk, request=request, split=splitting(chunk), deadline=deadline, first=first,
            )  # fmt: skip
            self._caller.finish(task)
            done = task.closed()
            if self.places.remembered and method in _ENDS_LEASES:
                ended = [item for item, outcome in zip(chunk, done, strict=True) if outcome is None]
                self.places.left(ended if method is methods.DELETE else [item.id for item in ended])
            return done

        self._router.begin()
        if method is methods.ENQUEUE and isinstance(items, Sized) and len(items) >= _MANY:
            self._router.wait(monotonic() + self.timeout_s(timeout_ms))
        chunks = list(requests_of(items, self._caller.max_frame_bytes - _REQUEST_OVERHEAD_BYTES))
        if len(chunks) == 1 or method is methods.ENQUEUE:
            return [outcome for chunk in chunks for outcome in send(chunk)]
        end_of = (lambda item_id: item_id) if method is methods.DELETE else lambda item: (item.id, item.lease)
        return one_by_one(chunks, end_of, send)

    def anywhere(self, asked: Sequence[int], refused: Mapping[int, Address]) -> Sequence[Part]:
        return self._router.spread(asked, refused)


def one_by_one(
    chunks: Iterable[Sequence[Any]], end_of: Callable[[Any], Hashable], send: Callable[[Sequence[Any]], Sequence[Any]]
) -> list[Any]:
    """Return the outcome of each entry of several requests, as one request for all of them would give it.

    An entry that an earlier request had is not sent again. Another entry with the same `end_of` is: it may be wrong."""
    known: dict[Hashable, tuple[Any, Any]] = {}  # by end: the first entry that was not wrong, and its outcome
    outcomes: list[Any] = []
    for chunk in chunks:
        before = [known.get(end_of(entry)) for entry in chunk]
        new = [entry for entry, old in zip(chunk, before, strict=True) if old is None or old[0] != entry]
        answers = iter(send(new) if new else ())
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
