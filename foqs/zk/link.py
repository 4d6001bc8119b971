"""The connection to ZooKeeper: one session after another, and a bounded number of requests in flight.

kazoo runs without callback threads and without its own log. Callbacks run on the event loop, and kazoo's errors are
mapped to errors of the protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import select
import ssl
import sys
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import structlog
from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
    SessionMovedError,
    WriterNotClosedException,
    ZookeeperError,
)
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import PURESASL_AVAILABLE
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from foqs.config.schema import ZookeeperSection
from foqs.counters import SECONDS, Histogram
from foqs.errors import Invalid
from foqs.extras import missing
from foqs.travel import bare
from foqs.zk.protocol import ZkConflict, ZkError, ZkRefused, ZkUnavailable, ZkUnknown

log = structlog.get_logger("foqs.zk")

Call = Callable[[KazooClient], Any]
Then = Callable[[Any, Exception | None], None]

# kazoo writes a byte for each request to a socket that its thread reads: it blocks when a few hundred are unread.
_WINDOW = 100
_AGAIN_S = 1.0
_CLOSE_S = 1.0
_MAX_DELAY_S = 1.0
_TRIES = 3
"""Connection attempts within one session's time-out, if each server accepts the connection and stays silent."""
_LEAST_PATIENCE_S = 1.0
_LOOK_S = 0.5
# foqs logs the session's states itself; kazoo stops its attempts only when it is closed.
_NOT_LOGGED = ("Transition to ", "Session has expired", "AUTH_FAILED", "Failed connecting to Zookeeper within")
CONFLICTS = (BadVersionError, NodeExistsError, NoNodeError, NotEmptyError)
# A failed authentication ends the connection; one without the rights is refused with NoAuthError.
LOST = (
    AuthFailedError,
    ConnectionClosedError,
    ConnectionLoss,
    OperationTimeoutError,
    SessionExpiredError,
    SessionMovedError,
)


class Link:
    """Sends requests over one session at a time; all calls and callbacks are on the loop.

    `up(session id)` follows each connection, then `down(expired)`. Requests are sent in the order of their calls,
    urgent ones first. If the connection is lost, a request in flight ends with kazoo's ConnectionLoss, and an unsent
    one with ZkUnavailable.

    A server refuses a session that has seen later transactions than the server has: by closing the connection, as often
    as kazoo tries. That is for ever if ZooKeeper lost its data. So a session without a connection for its whole
    time-out is given up for a new one, if servers accept connections in this time.
    """

    def __init__(
        self,
        config: ZookeeperSection,
        loop: asyncio.AbstractEventLoop,
        up: Callable[[int], None],
        down: Callable[[bool], None],
    ) -> None:
        self._config = config
        self._loop = loop
        self._up = up
        self._down = down
        self._client: KazooClient | None = None
        self._connected = False
        self._closing = self._closed = False
        self._closings: list[Callable[[], None]] = []
        self._refused = False  # the credential was refused, and the log has it
        self._giving_up: asyncio.TimerHandle | None = None
        self._gave_up = False  # the session before was given up, and `down` does not know it yet
        self._kazoo_log = KazooLog()
        self._numbers = itertools.count()
        self._in_flight: dict[int, tuple[Then, float]] = {}  # with the time when it was sent
        self.round_trips = Histogram(SECONDS)
        """Seconds between a request and its answer."""
        self._urgent: deque[tuple[Call, Then]] = deque()
        self._bulk: deque[tuple[Call, Then]] = deque()

    def start(self) -> None:
        """Connect, and retry until `close`."""
        if self._closing:
            return
        config = self._config
        patience_s = max(_LEAST_PATIENCE_S, config.session_timeout_ms / 1000 / _TRIES)
        handler = self._handler = LoopHandler(self._loop, lambda: self._ended(client), patience_s)
        client = self._client = KazooClient(
            config.hosts,
            timeout=config.session_timeout_ms / 1000,
            handler=handler,
            default_acl=acl_of(config),
            connection_retry={"max_tries": -1, "delay": 0.1, "max_delay": _MAX_DELAY_S},
            logger=self._kazoo_log,
            **security(config),
        )
        client.add_listener(partial(self._listen, client, handler))
        client.start_async()

    def close(self, done: Callable[[], None]) -> None:
        """End the session. `done` is called when it has ended, or after one second. May be called twice."""
        self._closings.append(done)
        if self._closing:
            if self._closed:
                self._loop.call_soon(self._tell_closed)
            return
        self._closing, self._connected = True, False
        self._stop_waiting()
        self._fail(self._unsent(), ZkUnavailable("closed"))

        def closed() -> None:
            timer.cancel()
            self._closed = True
            self._fail(self._taken(), ConnectionLoss())
            self._tell_closed()

        timer = self._loop.call_later(_CLOSE_S, closed)
        if self._client is not None:
            self._end(self._client, closed)
        else:
            self._loop.call_soon(closed)

    def ask(self, call: Call, then: Then, *, urgent: bool = True) -> None:
        """Send a request. `call` returns kazoo's future answer; `then` gets its value or its error."""
        if not self._connected:
            self._loop.call_soon(then, None, ZkUnavailable("no connection to ZooKeeper"))
            return
        (self._urgent if urgent else self._bulk).append((call, then))
        self._send()

    async def answer(self, call: Call) -> Any:
        """Send a request and return its value. Raises ZkError."""
        future: asyncio.Future[Any] = self._loop.create_future()

        def then(value: Any, error: Exception | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(bare(mapped(error)))

        self.ask(call, then)
        return await future

    def _tell_closed(self) -> None:
        closings, self._closings = self._closings, []
        for done in closings:
            done()

    # ------------------------------------------------------------------------------------- requests

    def _send(self) -> None:
        while self._connected and len(self._in_flight) < _WINDOW and (self._urgent or self._bulk):
            call, then = (self._urgent or self._bulk).popleft()
            number = next(self._numbers)
            self._in_flight[number] = then, self._loop.time()
            call(self._client).rawlink(partial(self._answered, number))

    def _answered(self, number: int, result: Any) -> None:
        sent = self._in_flight.pop(number, None)
        if sent is None:  # it was already failed when the connection was lost
            return
        then, sent_s = sent
        try:
            value = result.get_nowait()
        except ConnectionLoss as error:  # unsent requests wait for the new state of the session
            then(None, bare(error))
            return
        except KazooException as error:
            self.round_trips.observe(self._loop.time() - sent_s)
            then(None, bare(error))
        else:
            self.round_trips.observe(self._loop.time() - sent_s)
            self._refused = False
            then(value, None)
        self._send()

    def _unsent(self) -> list[Then]:
        thens = [then for _, then in (*self._urgent, *self._bulk)]
        self._urgent.clear()
        self._bulk.clear()
        return thens

    def _taken(self) -> list[Then]:
        thens = [then for then, _ in self._in_flight.values()]
        self._in_flight.clear()
        return thens

    @staticmethod
    def _fail(thens: list[Then], error: Exception) -> None:
        for then in thens:
            then(None, bare(error))

    # ------------------------------------------------------------------------------------- sessions

    def _listen(self, client: KazooClient, handler: LoopHandler, state: str) -> None:
        """In kazoo's thread."""
        session = client.client_id[0] if state == KazooState.CONNECTED else 0
        refused = client.client_state == KeeperState.AUTH_FAILED
        handler.completion_queue.put(partial(self._changed, client, state, session, refused))

    def _changed(self, client: KazooClient, state: str, session: int, refused: bool) -> None:
        if client is not self._client or self._closing:
            return
        if refused and not self._refused:
            self._refused = True
            log.error("credential.refused", scheme=self._config.auth_scheme)
        if state == KazooState.CONNECTED:
            self._stop_waiting()
            if self._gave_up:
                self._gave_up = False
                self._down(True)
            self._connected = True
            self._up(session)
        else:
            self._lost(state != KazooState.SUSPENDED)

    def _lost(self, expired: bool) -> None:
        self._connected = False
        self._stop_waiting()
        if not expired:
            self._handler.accepted = False
            self._giving_up = self._loop.call_later(self._config.session_timeout_ms / 1000, self._give_up)
        unsent = self._unsent()
        self._fail(self._taken(), ConnectionLoss())
        self._fail(unsent, ZkUnavailable("no connection to ZooKeeper"))
        self._down(expired)

    def _stop_waiting(self) -> None:
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None

    def _give_up(self) -> None:
        """Start a new session in place of one that servers refuse. Its records end, or the new session replaces them.

        While no server accepts a connection, no server can end the session either: it is still valid later."""
        if not self._handler.accepted:
            self._giving_up = self._loop.call_later(_LOOK_S, self._give_up)
            return
        client, self._giving_up = self._client, None
        if client is not None:
            log.warning("session.given_up", reason="no server takes it: it may have seen data that ZooKeeper lost")
            self._client, self._gave_up = None, True
            self._end(client, lambda: None)
            self.start()

    def _ended(self, client: KazooClient | None) -> None:
        """Start a new client, and so a new session: kazoo has given up for good."""
        if client is not self._client or client is None or self._closing:
            return
        self._gave_up = False
        self._client = None
        self._lost(True)
        self._end(client, lambda: None)
        self._loop.call_later(_AGAIN_S, self.start)

    def _end(self, client: KazooClient, done: Callable[[], None]) -> None:
        """Close the client in a separate thread, because kazoo waits for its own thread."""

        def end() -> None:
            with contextlib.suppress(WriterNotClosedException):
                client.stop()
                client.close()
            client.handler.completion_queue.put(done)

        client.handler.spawn(end)


def check_config(config: ZookeeperSection) -> None:
    """Check the configuration. Raises Invalid if a package or a file is missing."""
    if config.auth_scheme == "sasl" and not PURESASL_AVAILABLE:
        raise Invalid("zookeeper.auth_scheme: " + missing("the package pure-sasl", "sasl"))
    files = {"ca": config.tls_ca_file, "cert": config.tls_cert_file, "key": config.tls_key_file}
    for name, path in files.items():
        if path is not None and not os.access(path, os.R_OK):  # kazoo would retry for ever
            raise Invalid(f"zookeeper.tls_{name}_file: cannot read {path}")


def acl_of(config: ZookeeperSection) -> list[Any]:
    """Return the ACL of nodes. Of a creator with two credentials, a node belongs to both."""
    return list(CREATOR_ALL_ACL if config.acl == "creator" else OPEN_ACL_UNSAFE)


def security(config: ZookeeperSection) -> dict[str, Any]:
    """Return kazoo's settings for TLS and the credential."""
    return {**_tls(config), **_authentication(config)}


def _tls(config: ZookeeperSection) -> dict[str, Any]:
    if not config.tls:
        return {}
    files = {"ca": config.tls_ca_file, "certfile": config.tls_cert_file, "keyfile": config.tls_key_file}
    given = {name: str(path) for name, path in files.items() if path is not None}
    return {"use_ssl": True, "verify_certs": True, "check_hostname": True, **given}


def _authentication(config: ZookeeperSection) -> dict[str, Any]:
    if config.auth_scheme is None or config.auth_credential is None:
        return {}
    if config.auth_scheme == "sasl":
        user, _, password = config.auth_credential.partition(":")
        names = {"username": _as_digested(user), "password": _as_digested(password)}
        return {"sasl_options": {"mechanism": "DIGEST-MD5", **names}}
    credentials = [config.auth_credential, config.auth_credential_previous]
    return {"auth_data": [(config.auth_scheme, credential) for credential in credentials if credential is not None]}


def _as_digested(text: str) -> bytes:
    """Return the bytes that DIGEST-MD5 hashes: Latin-1 where that has all letters, else UTF-8 (RFC 2831, 2.1.2.1).

    kazoo alone would take UTF-8 for both."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode()


# ------------------------------------------------------------------------------------------------ kazoo


class _OnLoop:
    """Replaces kazoo's queues: answers and watch events run on the loop, in the order of arrival."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def put(self, what: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, so no callback can run
            self._loop.call_soon_threadsafe(what)


class LoopHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """Calls `ended` on the loop when kazoo's connection thread has ended: the thread does not retry after a failed
    authentication or an unexpected error.

    A server is given up if it takes longer than `patience_s` to accept a connection, or to send its first answer on it.
    kazoo alone would wait for the session's time-out: one silent server would cost the session.
    """

    running = True
    accepted = False
    """A server has accepted a connection, set in kazoo's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ended: Callable[[], None], patience_s: float) -> None:
        super().__init__()
        self.completion_queue = self.callback_queue = _OnLoop(loop)
        self._ended = ended
        self._patience_s = patience_s

    def start(self) -> None:
        """There are no threads to start."""

    def stop(self) -> None:
        """There are no threads to stop."""

    def create_connection(self, *args: Any, timeout: float, **kwargs: Any) -> Any:
        made = super().create_connection(*args, timeout=min(timeout, self._patience_s), **kwargs)
        self.accepted = True
        return made

    def select(
        self, readable: list[Any], writable: list[Any], _: list[Any], timeout: float
    ) -> tuple[list[Any], list[Any]]:
        """Replace select.select for kazoo. kazoo's version creates and closes an epoll object each time, several times
        a request. Neither notices bytes that a TLS socket has decrypted already, with an answer that arrived together
        with another."""
        if held := [one for one in readable if isinstance(one, ssl.SSLSocket) and one.pending()]:
            return held, []
        if len(readable) == 1:  # later calls also wait for new requests
            timeout = min(timeout, self._patience_s)
        poll = select.poll()
        for thing in readable:
            poll.register(thing, select.POLLIN)
        for thing in writable:
            poll.register(thing, select.POLLOUT)
        ready = {number for number, _ in poll.poll(timeout * 1000)}
        return [one for one in readable if one.fileno() in ready], [one for one in writable if one.fileno() in ready]

    def spawn(self, func: Callable[..., None], *args: Any, **kwargs: Any) -> Any:
        """A daemon thread."""
        if func.__name__ != "zk_loop":
            return super().spawn(func, *args, **kwargs)

        def run() -> None:
            try:
                with contextlib.suppress(Exception):  # kazoo has logged it
                    func(*args, **kwargs)
            finally:
                self.completion_queue.put(self._ended)

        return super().spawn(run)


class KazooLog:
    """kazoo's log without the data that it sends and receives, which contain credentials and URLs. A repeated message
    is logged once, not at each attempt."""

    def __init__(self) -> None:
        self._said = ""

    def debug(self, text: str, *args: object) -> None: ...

    def info(self, text: str, *args: object) -> None: ...

    def log(self, level: int, text: str, *args: object) -> None: ...

    def warning(self, text: str, *args: object) -> None:
        said = text % args
        if said != self._said and not said.startswith(_NOT_LOGGED):
            self._said = said
            log.warning("kazoo.warned", said=said)

    warn = error = warning

    def exception(self, text: str, *_args: object) -> None:
        log.error("kazoo.failed", said=text.partition(":")[0], error=type(sys.exc_info()[1]).__name__)


def mapped(error: Exception) -> ZkError:
    """Map an error. The text is only the kind of error: the written data may hold a shard's URL."""
    kind = type(error).__name__
    if isinstance(error, ZkError):
        return error
    if isinstance(error, CONFLICTS):
        return ZkConflict(kind)
    if isinstance(error, ZookeeperError) and not isinstance(error, LOST):
        return ZkRefused(f"ZooKeeper refuses it: {kind}")
    return ZkUnknown(kind)


def first_failure(results: Iterable[object]) -> Exception | None:
    """Return the reason why a transaction failed; None if it succeeded. Steps that would have succeeded also have an
    error."""
    failures = [result for result in results if isinstance(result, KazooException)]
    reasons = [failure for failure in failures if not isinstance(failure, RolledBackError | RuntimeInconsistency)]
    return next(iter(reasons or failures), None)
