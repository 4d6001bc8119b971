"""The two kinds of call: one look, or a batch of items with an outcome each. Each records which items
have an outcome, which may be retried, and which have an unknown outcome.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from foqs.bounds import Limits
from foqs.client.caller import Asked, Caller
from foqs.client.connection import Address
from foqs.client.methods import ENQUEUE
from foqs.client.pool import Busy
from foqs.client.request_ids import current
from foqs.client.routes import Part
from foqs.errors import FoqsError, NotServed, OutcomeUnknown, RequestTooLarge, item_error, named
from foqs.ids import Duplicate
from foqs.second_answer import LOOK, Policy, Verdict, judge, last_word, unknown
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
