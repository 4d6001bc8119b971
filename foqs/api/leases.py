"""ReleaseLeases: an operator takes items away from workers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from foqs.api import validation
from foqs.bounds import Limits
from foqs.engine.engine import Engine
from foqs.engine.stats import Releasing
from foqs.errors import FoqsError
from foqs.idl import idl
from foqs.peers.forwarder import Forwarder, LoneForwarder
from foqs.rpc.call import Call

_LONGEST_MS = 1 << 62
_ANSWER_SHARE = 0.5
"""Of the caller's time, this host's own shards get so much: then the other hosts are asked."""


class Leases:
    """`limits` is called for each request; `address` is this host's, as clients know it."""

    def __init__(
        self,
        engine: Engine,
        limits: Callable[[], Limits],
        now_ms: Callable[[], int],
        address: Callable[[], str],
        forwarder: Forwarder | LoneForwarder,
    ) -> None:
        self._engine = engine
        self._limits = limits
        self._now_ms = now_ms
        self._address = address
        self._forwarder = forwarder

    def release(self, call: Call) -> None:
        """Raises Invalid."""
        request, limits = call.request, self._limits()
        key = (validation.name(request.ns, "ns", limits), validation.name(request.topic, "topic", limits))
        if request.worker is not None:
            validation.name(request.worker, "worker", limits, limits.worker_bytes)
        held_ms = validation.within(request.held_longer_than_ms, "held_longer_than_ms", 0, _LONGEST_MS, 0)
        timeout_ms = validation.timeout_ms(request, limits)
        now_ms = self._now_ms()

        def released(count: int, error: FoqsError | None) -> None:
            ended, failed = count, set() if error is None else {self._address()}

            def add(_address: str, response: Any) -> None:
                nonlocal ended
                ended += response.released or 0
                failed.update(response.missing or ())

            def done(missing: list[str]) -> None:
                call.reply(idl.ReleaseLeasesResponse(ended, sorted(failed.union(missing))))

            part = partial(idl.ReleaseLeasesRequest, *key, request.worker, request.held_longer_than_ms)
            self._forwarder.ask_others("ReleaseLeases", part, request, now_ms + timeout_ms, add, done)

        here_ms = max(1, int(timeout_ms * _ANSWER_SHARE))
        self._engine.release(Releasing(self._engine, key, request.worker, now_ms - held_ms, released), now_ms, here_ms)
