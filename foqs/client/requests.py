"""How a client asks: which host gets which part of a request, and which requests are repeated."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Sized
from time import monotonic
from typing import Any

from foqs.checks import LONGEST_MS, check_int
from foqs.client import methods
from foqs.client.caller import Caller
from foqs.client.connection import Address
from foqs.client.places import Places
from foqs.client.request_ids import current
from foqs.client.router import Router
from foqs.client.routes import Part
from foqs.client.tasks import Answers, First, ItemTask, Look, Split, requests_of
from foqs.errors import FoqsError, Invalid, NotFound, StaleLease
from foqs.second_answer import LOOK, ONCE, Policy
from foqs.travel import bare
from foqs.wire.client_codec import RemoteMethod

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
