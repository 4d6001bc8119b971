"""How a client asks: which host gets which part of a request, and which requests are repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from time import monotonic
from typing import Any

from foqs.client import methods
from foqs.client.caller import Caller
from foqs.client.connection import Address
from foqs.client.request_ids import current
from foqs.client.router import Router
from foqs.client.routes import Part
from foqs.client.tasks import Answers, First, ItemTask, Look, Split, requests_of
from foqs.errors import FoqsError
from foqs.second_answer import LOOK, ONCE, Policy
from foqs.wire.remote_method import RemoteMethod

_REQUEST_OVERHEAD_BYTES = 8_192


class Requests:
    """The requests of one client. `timeout_ms` is the timeout of those that are given none."""

    def __init__(self, caller: Caller, router: Router, namespace: str, timeout_ms: int) -> None:
        self._caller = caller
        self._router = router
        self._namespace = namespace
        self._timeout_ms = timeout_ms

    def timeout_s(self, timeout_ms: int | None) -> float:
        return (self._timeout_ms if timeout_ms is None else timeout_ms) / 1000

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
            return First(deadline, request_id, error)
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

        self._router.begin()
        outcomes: list[Any] = []
        for chunk in requests_of(items, self._caller.max_frame_bytes - _REQUEST_OVERHEAD_BYTES):
            deadline = monotonic() + self.timeout_s(timeout_ms) if first is None else first.deadline
            task = ItemTask(
                self._caller, method, policy,
                items=chunk, request=request, split=splitting(chunk), deadline=deadline, first=first,
            )  # fmt: skip
            self._caller.finish(task)
            outcomes += task.closed()
        return outcomes

    def anywhere(self, asked: Sequence[int], refused: Mapping[int, Address]) -> Sequence[Part]:
        return (Part(self._router.order(last=set(refused.values())), asked),)
