"""The clients of an application, and how a call of a task is stored once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from threading import Lock
from time import monotonic
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary

from foqs.client import AsyncClient, Client, FoqsError, ItemSpec, Unavailable
from foqs.client.call import single

SLICE_MS = 2_000
"""If a random key has no host for this time, the enqueue is sent with another key."""


class Clients:
    """A blocking client for all threads, and one client for each event loop, made at their first use. `options` go
    to both."""

    def __init__(self, address: str, namespace: str, options: dict[str, Any]) -> None:
        self.address = address
        self.namespace = namespace
        self.options = options
        self._timeout_s = options.get("timeout_ms", 30_000) / 1000
        self._client: Client | None = None
        self._of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncClient] = WeakKeyDictionary()
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
        client = self._of_loops.get(loop)
        if client is None:
            client = self._of_loops[loop] = AsyncClient(self.address, self.namespace, **self.options)
        return client

    def enqueue(self, spec: ItemSpec) -> int:
        """Store one item with a `dedup_key`, and return its id. A request whose reply was lost is repeated with the
        key. A random key (without `dedup_until`) is replaced if its host is away: other hosts may be there."""
        until = monotonic() + self._timeout_s
        while True:
            outcomes = self.blocking.enqueue_many([spec], timeout_ms=_slice_ms(spec, until))
            again = _again(spec, outcomes, until)
            if again is None:
                return single(outcomes)
            spec = again

    async def aenqueue(self, spec: ItemSpec) -> int:
        """Like `enqueue`, for coroutines."""
        until = monotonic() + self._timeout_s
        while True:
            outcomes = await self.of_loop.enqueue_many([spec], timeout_ms=_slice_ms(spec, until))
            again = _again(spec, outcomes, until)
            if again is None:
                return single(outcomes)
            spec = again

    def close(self) -> None:
        """Close the blocking client."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    async def aclose(self) -> None:
        """Close the client of this event loop."""
        client = self._of_loops.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()


def _slice_ms(spec: ItemSpec, until: float) -> int:
    left_ms = max(1, int((until - monotonic()) * 1000))
    return left_ms if spec.dedup_until is not None else min(left_ms, SLICE_MS)


def _again(spec: ItemSpec, outcomes: Sequence[int | FoqsError], until: float) -> ItemSpec | None:
    """Return what to send after these outcomes of one item; None if they are final."""
    (outcome,) = outcomes
    if not isinstance(outcome, FoqsError) or spec.dedup_until is not None or monotonic() >= until:
        return None
    if not outcome.outcome_known:
        return spec
    return replace(spec, dedup_key=uuid4().hex) if isinstance(outcome, Unavailable) else None
