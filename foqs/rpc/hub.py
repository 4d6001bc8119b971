"""The part of a server that its connections share: codec, limits, byte budget, counters and bounds on connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any, Generic, TypeVar

import structlog

from foqs.bounds import Budget, Limits, LogThrottle
from foqs.checks import host_port
from foqs.counters import Namespaces
from foqs.idl import idl
from foqs.rpc.arrival import Admission
from foqs.rpc.call import Call, MethodCounters, RequestLog, RpcCounters
from foqs.rpc.frames import Frames
from foqs.wire.protocol import FRAME_HEAD_BYTES
from foqs.wire.server_codec import ReplyEncoder, RequestDecoder

log = structlog.get_logger("foqs.rpc")

C = TypeVar("C")
Handler = Callable[[Call], None]
Trusts = Callable[[tuple[str, ...]], bool]
"""Return True if a client whose certificate has these names (none: no certificate) needs no further proof."""
Report = Callable[[str, Exception, Any], None]
"""(method, the exception, the request where it is known)"""

_SCRATCH_BYTES = 64 * 1024


def address_of(transport: Any) -> tuple[str, str]:
    """Return (address, "address:port") of the peer; both empty when it has disconnected."""
    found = transport.get_extra_info("peername")
    if not found:
        return "", ""
    host, port = found[:2]
    return host, host_port(host, port)


class Places:
    """Bounds on connections: in all, and from one address (None: the same number)."""

    __slots__ = ("_taken", "_taken_by", "at_most", "each_at_most")

    def __init__(self) -> None:
        self._taken = 0
        self._taken_by: dict[str, int] = {}
        self.bound(0)

    def bound(self, at_most: int, each_at_most: int | None = None) -> None:
        """Set the bounds for new connections; open ones stay."""
        self.at_most = at_most
        self.each_at_most = at_most if each_at_most is None else each_at_most

    def take(self, address: str) -> tuple[str, int] | None:
        """Take a place. Return None, or (configuration key, its value) of the bound that is reached."""
        taken = self._taken_by.get(address, 0)
        if self._taken >= self.at_most:
            return "max_connections", self.at_most
        if taken >= self.each_at_most:
            return "max_connections_per_address", self.each_at_most
        self._taken += 1
        self._taken_by[address] = taken + 1
        return None

    def give(self, address: str) -> None:
        """Give back a place of `address`."""
        self._taken -= 1
        left = self._taken_by[address] - 1
        if left:
            self._taken_by[address] = left
        else:
            del self._taken_by[address]


class ConnectionHub(Generic[C]):
    """Shared by the connections (`C`) of one server. Everything runs on the server's loop."""

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        limits: Limits,
        budget: Budget,
        report: Report,
        namespaces: Namespaces | None,
        requests: RequestLog | None,
        trusts: Trusts,
    ) -> None:
        self.frames = Frames(budget.limit_bytes, limits.frame_bytes)
        self.handlers = dict(handlers)
        self.limits = limits
        self.budget = budget
        self.report = report
        self.counters = RpcCounters({name: MethodCounters() for name in self.handlers})
        self.namespaces = namespaces if namespaces is not None else Namespaces()
        self.requests = requests or RequestLog(perf_counter)
        self.decoder = RequestDecoder(idl.Foqs, self.handlers, limits)
        self.encoder = ReplyEncoder(limits.frame_bytes)
        self.trusts = trusts
        self.scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self.whole_bytes = FRAME_HEAD_BYTES + limits.frame_bytes
        self.loose_bytes = 0
        """Held by connections behind calls in progress, and of frames that were not admitted yet."""
        self.draining = False
        self.now = 0.0  # loop time of the last tick
        self.loop: asyncio.AbstractEventLoop
        self.admission: Admission
        self.places = Places()
        # While the budget has more in use, only the lengths of frames are read, and small frames are admitted one by
        # one to the share that is theirs.
        self.room_bytes = budget.limit_bytes - max(self.frames.small_share_bytes, _SCRATCH_BYTES)
        self._connections: set[C] = set()
        # Bytes of its answer that a peer has not taken, and since when.
        self._stalled: dict[C, tuple[int, float]] = {}
        self._emptied = asyncio.Event()
        self._refusals = LogThrottle(1)

    def limit(self, limits: Limits) -> None:
        """Set the bounds on requests, from the next one on. `frame_bytes` stays: unfinished frames were measured by
        it."""
        assert limits.frame_bytes == self.limits.frame_bytes
        self.limits = self.decoder.limits = limits

    def admit(self, connection: C, host: str) -> bool:
        """Take a place for a connection from an address. Return False if there is none."""
        full = None if self.draining else self.places.take(host)
        if self.draining or full is not None:
            self.counters.connections_refused += 1
            if full is not None:
                self._log_refusal(host, *full)
            return False
        self._connections.add(connection)
        self.counters.connections += 1
        self.counters.connections_accepted += 1
        return True

    def forget(self, connection: C, host: str) -> None:
        """Remove a closed connection."""
        if connection in self._connections:
            self._connections.remove(connection)
            self.places.give(host)
            self.counters.connections -= 1
        self._stalled.pop(connection, None)
        if not self._connections:
            self._emptied.set()

    def stalled(self, connection: C, output_bytes: int) -> None:
        """Note that the peer does not take its answer."""
        self._stalled[connection] = (output_bytes, self.loop.time())

    def unstalled(self, connection: C) -> None:
        """Note that the peer has taken its answer."""
        self._stalled.pop(connection, None)

    def _log_refusal(self, host: str, key: str, limit: int) -> None:
        left_out = self._refusals.take(self.now)
        if left_out is not None:
            log.warning(
                "connection.refused",
                address=host,
                limit=limit,
                hint=f"raise server.{key} (SIGHUP applies it) if these are your clients",
                left_out=left_out,
            )
