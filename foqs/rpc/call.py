"""One request being answered."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Any

from foqs.errors import FoqsError, Unavailable
from foqs.idl import idl
from foqs.rpc.encode import TooLarge

if TYPE_CHECKING:
    from foqs.rpc.connection import Connection
    from foqs.rpc.methods import Method

_MESSAGE_CHARACTERS = 1000


class Call:
    """Handed to a handler, which calls `reply` or `fail` once, at once or later, on the event loop.

    `request` is the idl struct of the method, made lean (see foqs.rpc.structs): its own strings and its
    context are checked, strings inside its items are `bytes` where they are not UTF-8. `peer` is "host:port"
    of the caller, `certified` whom its certificate names (one that was verified). `request_bytes` is the
    length of the frame; that much of the budget is held until the answer, or the loss. `begun_s` is when the
    frame was there, by the clock of `RequestLog`. `within`, where it is set, are the namespaces that the caller
    may know of, in answer to a request that names none.

    `on_lost` may be set by a handler that answers later. It is called once if the connection dies before an
    answer was given; `reply` and `fail` then return False.
    """

    __slots__ = (
        "_answered",
        "_called",
        "_connection",
        "_seqid",
        "begun_s",
        "certified",
        "on_lost",
        "peer",
        "request",
        "request_bytes",
        "within",
    )

    def __init__(
        self,
        connection: Connection,
        called: Method,
        seqid: int,
        request: Any,
        request_bytes: int,
    ) -> None:
        self._connection: Connection | None = connection
        self._called = called
        self._seqid = seqid
        self._answered = False
        self.begun_s = connection.requests.now_s()
        self.request = request
        self.request_bytes = request_bytes
        self.peer = connection.peer
        self.certified = connection.certified
        self.on_lost: Callable[[], None] | None = None
        self.within: Container[str] | None = None

    @property
    def method(self) -> str:
        return self._called.name

    def reply(self, response: Any) -> bool:
        """Answers with the struct that the method declares.

        False when nothing of it was sent: the connection is gone, or the response does not fit a frame or
        cannot be encoded (then the caller got a RequestError). Raises RuntimeError when an answer was given
        before.
        """
        connection = self._ready()
        if connection is None:
            return False
        try:
            frame = connection.encoder.success(self._called, self._seqid, response)
        except TooLarge:
            connection.counters.too_large += 1
            self.fail(Unavailable("the answer does not fit a frame: ask for less at once"))
            return False
        except Exception as error:  # noqa: BLE001 - a response that cannot be encoded is a fault of the handler
            self._fail_internally(connection, error)
            return False
        connection.answer(self, frame)
        return True

    def fail(self, error: FoqsError) -> bool:
        """Answers with the declared RequestError. False when the connection is gone. Raises RuntimeError as
        `reply`.
        """
        connection = self._ready()
        if connection is None:
            return False
        message = error.message[:_MESSAGE_CHARACTERS].encode("utf-8", "replace").decode()
        if not error.outcome_known:
            self.doubt(0, error.message)
        declared = idl.RequestError(int(error.code), message, error.retry_after_ms)
        connection.counters.methods[self.method].errors[error.code] += 1
        connection.answer(self, connection.encoder.error(self._called, self._seqid, declared))
        return True

    def trust(self) -> None:
        """The caller is authenticated: from now on frames of any length are read from its connection."""
        if self._connection is not None:
            self._connection.trusted = True

    def doubt(self, items: int, reason: str) -> None:
        """Has the log say that nobody knows what became of so many items of the request; 0: of any of it."""
        if self._connection is not None:
            self._connection.requests.outcome_unknown(self.method, self.request, items, reason)

    def lost(self) -> None:
        """The connection is gone."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        requests = connection.requests
        requests.took(self, requests.now_s() - self.begun_s, answered=False)
        if self.on_lost is None:
            return
        try:
            self.on_lost()
        except Exception as error:  # noqa: BLE001 - one handler's fault must not keep a connection from being closed
            connection.report(self, error)

    def raised(self, connection: Connection, error: Exception) -> None:
        """The handler let an exception out. What is no FoqsError is reported, and the caller learns nothing
        of it.
        """
        if self._answered or self._connection is None:
            connection.report(self, error)
        elif isinstance(error, FoqsError):
            self.fail(error)
        else:
            self._fail_internally(connection, error)

    def settled(self) -> None:
        """An answer was given."""
        self._answered = True
        self._connection = None

    def _ready(self) -> Connection | None:
        if self._answered:
            raise RuntimeError(f"{self.method} was answered before")
        connection = self._connection
        if connection is not None and connection.is_closing():
            self._connection = None
            return None
        return connection

    def _fail_internally(self, connection: Connection, error: Exception) -> None:
        connection.counters.failed += 1
        connection.report(self, error)
        self.fail(Unavailable("internal error"))

    def __repr__(self) -> str:
        state = "answered" if self._answered else "lost" if self._connection is None else "in hand"
        return f"Call({self.method} from {self.peer}, {self.request_bytes} bytes, {state})"
