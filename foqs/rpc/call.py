"""One request being answered: its call, what the server counts of it, and the log lines about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Any, Protocol

import structlog

from foqs.bounds import LogThrottle
from foqs.counters import Namespaces
from foqs.errors import Code, FoqsError, Unavailable
from foqs.idl import request_id_of, trace_of
from foqs.wire.protocol import pack_u32
from foqs.wire.server_codec import AROUND_BYTES, SUCCESS, ReplyEncoder, ServedMethod, TooLarge

log = structlog.get_logger("foqs.rpc")
_request_log = structlog.get_logger("foqs.request")


class MethodCounters:
    """Counts of answered calls: `request_bytes` and `answer_bytes` of whole frames, `errors` of answers that were a
    RequestError."""

    __slots__ = ("answer_bytes", "calls", "errors", "request_bytes")

    def __init__(self) -> None:
        self.calls = 0
        self.request_bytes = 0
        self.answer_bytes = 0
        self.errors: Counter[Code] = Counter()


@dataclass(slots=True)
class RpcCounters:
    """`connections` is how many are open now; everything else only grows.

    `closed` counts connections the server closed, by why (CLOSED; "slow frame" is a TLS handshake too, "tls" one that
    failed, or bytes that are not TLS). `refused` counts whole frames that reached no handler, by why (REFUSED).
    `failed` counts handlers that let an exception out or answered with what cannot be encoded, and `lost` calls whose
    caller was gone before the answer.
    """

    methods: dict[str, MethodCounters]
    connections: int = 0
    connections_accepted: int = 0
    connections_refused: int = 0
    failed: int = 0
    too_large: int = 0
    lost: int = 0
    budget_waits: int = 0
    closed: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)

    @property
    def calls(self) -> int:
        return sum(method.calls for method in self.methods.values())


CLOSED = ("oversized", "malformed", "slow frame", "slow reader", "idle", "tls")
REFUSED = ("invalid", "unknown method", "message type", "oneway", "unauthenticated")


NEVER_S = float("inf")


class RequestLog:
    """Log lines about single requests. Each line has the request's id, which hosts pass on when they forward, so the
    lines of all hosts about one request can be found together. A request without an id gets one when a line is written
    about it, or when it is forwarded. A request of a trace has that trace's id in its lines. Every kind of line is
    bounded: `left_out` counts the lines omitted before it.

    `now_s` is monotonic; `slow_ms`, beyond what a request asked to wait, makes it a slow one (0: none is)."""

    def __init__(self, now_s: Callable[[], float], slow_ms: int = 0) -> None:
        self.now_s = now_s
        self.bound(slow_ms)
        self._slow = LogThrottle()
        self._lost = LogThrottle()
        self._unsent = LogThrottle()
        self._unrouted = LogThrottle()
        self._unknown = LogThrottle()

    def bound(self, slow_ms: int) -> None:
        """Set the bound, from the next answer on."""
        self.slow_s = slow_ms / 1000 if slow_ms else NEVER_S

    def took(self, method: str, request: Any, peer: str, took_s: float, *, answered: bool) -> None:
        """Log a slow request that was answered, or whose caller disconnected. `request` is None where it was not
        decoded."""
        wait_s = (getattr(request, "wait_ms", None) or 0) / 1000
        if request is None or took_s - wait_s <= self.slow_s:
            return
        left_out = self._slow.take(self.now_s())
        if left_out is not None:
            _request_log.warning(
                "request.slow",
                method=method,
                request_id=request_id_of(request),
                peer=peer,
                took_ms=round(took_s * 1000),
                wait_ms=round(wait_s * 1000),
                answered=answered,
                left_out=left_out,
                **trace_of(request.context),
            )

    def reply_lost(self, method: str, context: Any, address: str, error: FoqsError) -> None:
        """Log a forwarded request whose reply was lost; the other host may have carried it out."""
        left_out = self._lost.take(self.now_s())
        if left_out is not None:
            _request_log.warning(
                "forward.reply_lost",
                method=method,
                request_id=context.request_id,
                to=address,
                reason=error.message,
                left_out=left_out,
                **trace_of(context),
            )

    def not_sent(self, method: str, context: Any, address: str, error: FoqsError) -> None:
        """Log a forwarded request that did not reach the other host."""
        left_out = self._unsent.take(self.now_s())
        if left_out is not None:
            _request_log.warning(
                "forward.not_sent",
                method=method,
                request_id=context.request_id,
                to=address,
                reason=error.message,
                left_out=left_out,
                **trace_of(context),
            )

    def unrouted(self, method: str, request: Any, items: int) -> None:
        """Log that a request was given up: its shard had no owner in time."""
        left_out = self._unrouted.take(self.now_s())
        if left_out is not None:
            request_id = request_id_of(request)
            _request_log.warning(
                "request.unrouted",
                method=method,
                request_id=request_id,
                items=items,
                left_out=left_out,
                **trace_of(request.context),
            )

    def outcome_unknown(self, method: str, request: Any, items: int, reason: str) -> None:
        """Log that the caller got OUTCOME_UNKNOWN for `items` of its items."""
        left_out = self._unknown.take(self.now_s())
        if left_out is not None:
            _request_log.warning(
                "outcome.unknown",
                method=method,
                request_id=request_id_of(request),
                items=items,
                reason=reason,
                left_out=left_out,
                **trace_of(request.context),
            )


def log_failure(method: str, error: Exception, request: Any) -> None:
    """Log an exception that a handler raised: a fault in foqs. The default `report` of a server."""
    request_id = None if request is None else request_id_of(request)
    trace = {} if request is None else trace_of(request.context)
    log.error("handler.failed", method=method, request_id=request_id, exc_info=error, **trace)


class CallConnection(Protocol):
    """The connection of a call, which imports this module; here are the parts that a call uses."""

    peer: str
    certified: tuple[str, ...]
    trusted: bool
    counters: RpcCounters
    encoder: ReplyEncoder
    namespaces: Namespaces
    requests: RequestLog

    def is_closing(self) -> bool: ...
    def answer(self, call: Call, frame: bytes) -> bool: ...
    def report(self, call: Call, error: Exception) -> None: ...


class Call:
    """Handed to a handler, which calls `reply` or `fail` once, at once or later, on the event loop.

    `request` is the idl struct of the method, made lean (see foqs.wire.protocol): its own strings and its
    context are checked, strings inside its items are `bytes` where they are not UTF-8. `peer` is "host:port"
    of the caller, `certified` the names in its verified certificate. `request_bytes` is the length of the frame; the
    budget holds it until the answer, or the loss. `begun_s` is the arrival time of the frame, by the clock of
    `RequestLog`. `within`, where it is set, are the namespaces that the caller may see in the answer to a request
    without a namespace. With the answer, or the loss, the connection and the callbacks are forgotten: they refer to the
    call, and the garbage collector would have to find that circle.

    `on_lost` may be set by a handler that answers later. It is called once if the connection dies before an
    answer was given; `reply` and `fail` then return False. `on_oneway` may be set by a handler whose call waits. It is
    called when the caller sends a oneway message behind the call.
    """

    __slots__ = (
        "_called", "_seqid", "answered", "begun_s", "certified", "connection", "method", "on_lost", "on_oneway", "peer",
        "request", "request_bytes", "within",
    )  # fmt: skip

    def __init__(
        self,
        connection: CallConnection,
        called: ServedMethod,
        seqid: bytes,
        request: Any,
        request_bytes: int,
    ) -> None:
        self.connection: CallConnection | None = connection
        self._called = called
        self.method: str = called.name
        self._seqid = seqid
        self.answered = False
        self.begun_s = connection.requests.now_s()
        self.request = request
        self.request_bytes = request_bytes
        self.peer = connection.peer
        self.certified = connection.certified
        self.on_lost: Callable[[], None] | None = None
        self.on_oneway: Callable[[], None] | None = None
        self.within: Container[str] | None = None

    def reply(self, response: Any) -> bool:
        """Answer with the struct that the method declares, or with its bytes.

        Return False when nothing of it was sent: the connection is gone, or the response does not fit a frame or
        cannot be encoded (then the caller got a RequestError). Raises RuntimeError when an answer was given before.
        """
        connection = self.connection
        if connection is None:
            return self._gone()
        called, encoder = self._called, connection.encoder
        try:
            if type(response) is bytes:
                size = len(called.reply_head) + AROUND_BYTES + len(response)
                if size > encoder.frame_bytes:
                    raise TooLarge
                frame = b"".join((pack_u32(size), called.reply_head, self._seqid, SUCCESS, response, b"\0"))
            else:
                frame = encoder.success(called, self._seqid, response)
        except TooLarge:
            connection.counters.too_large += 1
            self.fail(Unavailable("the answer does not fit a frame: ask for less at once"))
            return False
        except Exception as error:  # noqa: BLE001 - a response that cannot be encoded is a fault of the handler
            self._fail_internally(connection, error)
            return False
        return connection.answer(self, frame)

    def fail(self, error: FoqsError) -> bool:
        """Answer with the declared RequestError. Return False when the connection is gone. Raises RuntimeError when an
        answer was given before."""
        connection = self.connection
        if connection is None:
            return self._gone()
        if not connection.is_closing():
            if not error.outcome_known:
                self.doubt(0, error.message)
            connection.counters.methods[self.method].errors[error.code] += 1
        return connection.answer(self, connection.encoder.error(self._called, self._seqid, error, self.request))

    def trust(self) -> None:
        """Mark the caller as authenticated: its connection reads frames of any length from now on."""
        if self.connection is not None:
            self.connection.trusted = True

    def doubt(self, items: int, reason: str) -> None:
        """Log that the outcome of `items` items of the request is unknown; 0: of the whole request."""
        if self.connection is not None:
            self.connection.requests.outcome_unknown(self.method, self.request, items, reason)

    def lost(self) -> None:
        """End the call: its connection is closed."""
        connection, on_lost = self.connection, self.on_lost
        self.connection = self.on_lost = self.on_oneway = None
        if connection is None:
            return
        requests = connection.requests
        requests.took(self.method, self.request, self.peer, requests.now_s() - self.begun_s, answered=False)
        if on_lost is None:
            return
        try:
            on_lost()
        except Exception as error:  # noqa: BLE001 - one handler's fault must not keep a connection from being closed
            connection.report(self, error)

    def raised(self, connection: CallConnection, error: Exception) -> None:
        """Answer for a handler that raised. An exception that is no FoqsError is reported; its text is not sent."""
        if self.connection is None:
            connection.report(self, error)
        elif isinstance(error, FoqsError):
            self.fail(error)
        else:
            self._fail_internally(connection, error)

    def _gone(self) -> bool:
        """Return False for an answer after the loss of the connection. Raises RuntimeError after another answer."""
        if self.answered:
            raise RuntimeError(f"{self.method} was answered before")
        return False

    def _fail_internally(self, connection: CallConnection, error: Exception) -> None:
        connection.counters.failed += 1
        connection.report(self, error)
        self.fail(Unavailable("internal error"))

    def __repr__(self) -> str:
        state = "answered" if self.answered else "lost" if self.connection is None else "in progress"
        return f"Call({self.method} from {self.peer}, {self.request_bytes} bytes, {state})"
