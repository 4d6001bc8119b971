"""The clients of an application, and how a call of a task is stored once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from threading import Lock
from time import monotonic
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary

from foqs.client import AsyncClient, Client, FoqsError, ItemSpec
from foqs.client.arguments import check_client_arguments, duration
from foqs.client.call import AGAIN, single, tried_until
from foqs.second_answer import KEYED, ONCE, judge, last_word
from foqs.tasks.codecs import Codecs

SLICE_MS = 2_000
"""If a random key has no host for this time, the enqueue is sent with another key."""


class Clients:
    """A blocking client for all threads, and one client for each event loop, made at their first use. `options` go
    to both. `codecs` write and read what their items hold."""

    def __init__(self, address: str, namespace: str, options: dict[str, Any], codecs: Codecs) -> None:
        self.address = address
        self.namespace = namespace
        self.options = options
        self.codecs = codecs
        check_client_arguments(address=address, namespace=namespace, **options)
        timeout_ms = options.get("timeout_ms", 30_000)
        duration(1)("timeout_ms", timeout_ms)
        self._timeout_s = timeout_ms / 1000
        self._client: Client | None = None
        self._of_loops: _OfLoops = WeakKeyDictionary()
        self._lock = Lock()

    @property
    def blocking(self) -> Client:
        if self._client is None:
            with self._lock:
                if self._client is None:
                    self._client = Client(self.address, self.namespace, **self.options)
        return self._client

    @property
    def of_loop(self) -> AsyncClient:
        """The client of the event loop that runs. Raises RuntimeError if none runs."""
        loop = asyncio.get_running_loop()
        known = self._of_loops.get(loop)
        if known is None:
            for ended, _ in _items_of(self._of_loops):
                if ended.is_closed():
                    self._of_loops.pop(ended, None)
            client = AsyncClient(self.address, self.namespace, **self.options)
            known = self._of_loops[loop] = client, _closed_with(loop, self._of_loops, client)
        return known[0]

    def enqueue(self, spec: ItemSpec) -> tuple[int, ItemSpec]:
        """Store one item with a `dedup_key` or an `order_key`. Return its id, and the item as it was sent.

        A request whose reply was lost is repeated with a dedup key. A random key (without `dedup_until`) is replaced if
        its host is away: other hosts may be there."""
        storing = _Storing(spec, self._timeout_s)
        while storing.more:
            with tried_until(storing.until):
                outcomes = self.blocking.enqueue_many([storing.spec], timeout_ms=storing.timeout_ms)
            storing.take(outcomes)
        return single([storing.outcome]), storing.spec

    async def aenqueue(self, spec: ItemSpec) -> tuple[int, ItemSpec]:
        """Like `enqueue`, for coroutines."""
        storing = _Storing(spec, self._timeout_s)
        while storing.more:
            with tried_until(storing.until):
                outcomes = await self.of_loop.enqueue_many([storing.spec], timeout_ms=storing.timeout_ms)
            storing.take(outcomes)
        return single([storing.outcome]), storing.spec

    @contextmanager
    def moved_to(self, address: str) -> Iterator[None]:
        """Be clients of another service, without TLS and a token, inside the `with`."""
        before = self.address, self.options, self._client, self._of_loops
        options = {name: value for name, value in self.options.items() if name not in ("tls", "token")}
        with self._lock:
            self.address, self.options, self._client, self._of_loops = address, options, None, WeakKeyDictionary()
        try:
            yield
        finally:
            self.close()
            left = _items_of(self._of_loops)
            with self._lock:
                self.address, self.options, self._client, self._of_loops = before
            for loop, (client, _) in left:
                if loop.is_running():
                    asyncio.run_coroutine_threadsafe(client.close(), loop)

    def close(self) -> None:
        """Close the blocking client."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    async def aclose(self) -> None:
        """Close the client of this event loop."""
        known = self._of_loops.pop(asyncio.get_running_loop(), None)
        if known is not None:
            await known[1].aclose()


_Known = tuple[AsyncClient, AsyncGenerator[None, None]]
_OfLoops = WeakKeyDictionary[asyncio.AbstractEventLoop, _Known]


def _items_of(of_loops: _OfLoops) -> list[tuple[asyncio.AbstractEventLoop, _Known]]:
    """Return all items at this time. To iterate over them fails when another thread adds one, or takes one out."""
    loops = [loop for key in of_loops.keyrefs() if (loop := key()) is not None]
    return [(loop, known) for loop in loops if (known := of_loops.get(loop)) is not None]


def _closed_with(
    loop: asyncio.AbstractEventLoop, of_loops: _OfLoops, client: AsyncClient
) -> AsyncGenerator[None, None]:
    """Return a generator that closes the client at the end of the event loop that runs, as `asyncio.run` ends one: the
    loop ends all generators that have begun in it. A program that is not asynchronous, such as a WSGI server, makes an
    event loop for each call."""

    async def until_the_end() -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            of_loops.pop(loop, None)
            await client.close()

    waiting = until_the_end()
    with suppress(StopIteration):  # it has begun, without a wait
        waiting.__anext__().send(None)
    return waiting


class _Storing:
    """The requests that store one item. `spec` is what to send next, while there is `more` to do, `until` the end.

    A random key is replaced after an error that leaves no doubt. Once a request may have stored the item, the key
    stays: another key would store a second item."""

    def __init__(self, spec: ItemSpec, timeout_s: float) -> None:
        self.spec = spec
        self.more = True
        self.outcome: int | FoqsError = 0
        self.until = monotonic() + timeout_s
        self._policy = ONCE if spec.dedup_key is None else KEYED
        self._keeps = spec.dedup_until is not None or spec.dedup_key is None
        self._doubtful = False

    @property
    def timeout_ms(self) -> int:
        left_ms = max(1, int((self.until - monotonic()) * 1000))
        return left_ms if self._keeps else min(left_ms, SLICE_MS)

    def take(self, outcomes: Sequence[int | FoqsError]) -> None:
        (outcome,) = outcomes
        if isinstance(outcome, FoqsError):
            self.outcome = last_word(self._policy, outcome, self._doubtful)
            self._doubtful = self._doubtful or not outcome.outcome_known
            self.more = judge(self._policy, outcome, self._doubtful) in AGAIN and monotonic() < self.until
            if not (self._keeps or self._doubtful):
                self.spec = replace(self.spec, dedup_key=uuid4().hex)
            self._keeps = self._keeps or self._doubtful
        else:
            self.outcome, self.more = outcome, False
