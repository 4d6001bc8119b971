"""Requests and their answers, over the pool, with a second try for what may have one."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from itertools import count
from math import inf
from time import monotonic
from typing import Any, NamedTuple, Protocol

from foqs.bounds import Limits
from foqs.client.connection import Address, Connection
from foqs.client.forks import renew_after_fork
from foqs.client.guard import SafeLog, guarded
from foqs.client.methods import SERVER_INFO
from foqs.client.places import Ask
from foqs.client.pool import Pool
from foqs.client.request_bytes import context, context_head
from foqs.client.request_ids import current
from foqs.client.retry import pause_ms
from foqs.client.returned import call_to_end
from foqs.client.wrong_peer import WrongPeer
from foqs.errors import FoqsError, LostReply, NotSent, Unavailable, Unreachable, named
from foqs.idl import idl
from foqs.wire.client_codec import RemoteMethod
from foqs.wire.protocol import SMALL_BYTES, GoAway, Malformed

log = SafeLog()

_SEQUENCES = 0x7FFF_FFFF
_SERVER_TIMEOUT_MS = Limits().timeout_max_ms
QUIET_S = 60.0
OnRetry = Callable[[FoqsError, float], object]


class Task(Protocol):
    """Something that may take several requests; `deadline` is of the monotonic clock, in seconds."""

    deadline: float

    @property
    def error(self) -> FoqsError | None:
        """Why the last attempt is repeated."""

    @property
    def retry_after_ms(self) -> int | None:
        """What the last attempt's answer asked for."""

    def attempt(self) -> bool:
        """Asks once; True when there is nothing left to ask for."""


class Asked(NamedTuple):
    """A request that was sent; `until` is when its answer is given up."""

    method: RemoteMethod
    sequence: int
    request_id: str
    connection: Connection
    until: float


class Caller:
    """Thread-safe. Makes requests with one token over one pool. `traceparent` gives what they carry of the trace.
    `on_retry(error, left_s)` is called before the first retry, and before another only after `QUIET_S` without any.
    Without `wait_server` no call is tried again after Unreachable, until a server has answered one.
    """

    def __init__(
        self,
        pool: Pool,
        token: str | None,
        attempt_timeout_ms: int,
        max_frame_bytes: int,
        traceparent: Callable[[], str | None] | None = None,
        on_retry: OnRetry | None = None,
        wait_server: bool = True,
    ) -> None:
        self.pool = pool
        self.max_frame_bytes = max_frame_bytes
        self._token = token
        self._context_head = b""
        self._attempt_timeout_ms = attempt_timeout_ms
        self._traceparent = traceparent
        self._wait_server = wait_server
        self._on_retry = on_retry or self._log_retry
        self._retried_at = -inf
        self._sequence = count(1)
        self.retries = 0  # about: threads may count at the same time
        self.waited_s = 0.0
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        self._closed = threading.Event()

    def close(self) -> None:
        """Ends the calls that wait to ask again, and fails all later ones."""
        self._closed.set()
        self.pool.close()

    def ask(
        self,
        method: RemoteMethod,
        request: Any,
        deadline: float,
        *,
        repeatable: bool,
        wait_ms: float = 0,
        to: Sequence[Address] = (),
        request_id: str | None = None,
        asked: Ask | None = None,
    ) -> Any:
        """One request, one response. `asked` may end the wait of the request. Raises the typed error of the failure;
        the rest as for `send`."""
        return self.receive(
            self.send(method, request, deadline, repeatable=repeatable, wait_ms=wait_ms, to=to, request_id=request_id),
            asked,
        )

    def send(
        self,
        method: RemoteMethod,
        request: Any,
        deadline: float,
        *,
        repeatable: bool,
        wait_ms: float = 0,
        to: Sequence[Address] = (),
        wait: bool = True,
        request_id: str | None = None,
    ) -> Asked:
        """Sends a request to the first of `to` that can be had; `receive` has to follow. The request is a struct
        without its context, or the bytes of its fields; without a `request_id` it is a call of its own. Raises NotSent
        (Busy without `wait`, when it would have to wait for a connection), Invalid.

        What must not be repeated gets all the time there is; else a silent server is left after the attempt's
        time-out, `wait_ms` being the wait of a long poll.
        """
        now = monotonic()
        until = deadline
        if repeatable:
            until = min(deadline, now + (self._attempt_timeout_ms + wait_ms) / 1000)
        server_ms = server_timeout_ms((until - now) * 1000 - wait_ms)
        request_id = request_id or current()
        if not self._context_head:
            self._context_head = context_head(self._token)
        trace = None if self._traceparent is None else guarded("tracing a request", self._traceparent)
        about = context(self._context_head, request_id, trace, server_ms)
        sequence = next(self._sequence) & _SEQUENCES
        frame = method.encode(request, sequence, self.max_frame_bytes, about)
        connection = self.pool.take(until, to, wait=wait)
        try:
            if len(frame) > SMALL_BYTES and self._token is not None and not connection.authenticated:
                self._introduce(connection, until)
            connection.send(frame, until)
        except BaseException as error:
            if isinstance(error, NotSent | WrongPeer):
                self.pool.avoid(connection.address)
            self.pool.give(connection, usable=False)
            if isinstance(error, WrongPeer):
                raise self._elsewhere(error) from error.__cause__
            raise
        return Asked(method, sequence, request_id, connection, until)

    def _introduce(self, connection: Connection, until: float) -> None:
        """Sends the token in a small request: hosts that ask for one read large requests of authenticated connections
        only. The answer does not matter: if the token is refused, so is the request. Raises NotSent or WrongPeer."""
        sequence = next(self._sequence) & _SEQUENCES
        request = SERVER_INFO.request(context=idl.RequestContext(token=self._token))
        try:
            SERVER_INFO.decode(connection.exchange(SERVER_INFO.encode(request, sequence), until), sequence)
        except (LostReply, GoAway, Malformed) as error:
            raise NotSent(f"{connection.address}: {error}") from error
        except (NotSent, WrongPeer):
            raise
        except FoqsError:
            return
        connection.authenticated = True

    def receive(self, asked: Asked, places: Ask | None = None) -> Any:
        """Return the response to a sent request, whose wait `places` may end. Raises the typed error of the failure."""
        connection = asked.connection
        usable = False
        try:
            waits = None if places is None or places.waker is None else places
            frame = connection.receive(asked.until) if waits is None else connection.receive(asked.until, waits)
            response = asked.method.decode(frame, asked.sequence)
            usable = connection.authenticated = self._wait_server = True
        except LostReply as error:
            self.pool.avoid(connection.address)
            named(error, asked.request_id)
            raise
        except WrongPeer as error:
            self.pool.avoid(connection.address)
            raise named(self._elsewhere(error), asked.request_id) from error.__cause__
        except Malformed as error:
            raise named(LostReply(f"{connection.address}: {error}"), asked.request_id) from error
        except FoqsError as answered:
            self._wait_server |= not isinstance(answered, NotSent)
            named(answered, asked.request_id)
            if isinstance(answered, Unavailable) and self.pool.has_others:
                self.pool.avoid(connection.address)
            else:
                # Its end may not have come yet: an enqueue of another thread would be dropped there unanswered.
                usable = not isinstance(answered, GoAway)
            raise
        finally:
            self.pool.give(connection, usable=usable)
        return response

    def _elsewhere(self, error: WrongPeer) -> FoqsError:
        """`error`; one after which other addresses are tried if there are any."""
        return NotSent(error.message) if self.pool.has_others else error

    def give_up(self, asked: Asked) -> None:
        """Drop a sent request: its reply is not needed any more."""
        self.pool.give(asked.connection, usable=False)

    def finish(self, task: Task) -> None:
        """Attempts `task` until it is finished, its time is over or the client is closed."""
        tries = 0
        while not task.attempt():
            if isinstance(task.error, Unreachable) and not self._wait_server:
                return
            tries += 1
            pause_s = pause_ms(tries, task.retry_after_ms, random.random) / 1000
            if self._closed.is_set() or monotonic() + pause_s >= task.deadline:
                return
            self.retries += 1
            self.waited_s += pause_s
            self._report(task)
            self._closed.wait(pause_s)

    def _report(self, task: Task) -> None:
        now = monotonic()
        quiet, self._retried_at = now - self._retried_at < QUIET_S, now
        if not quiet and task.error is not None:
            guarded("on_retry of the client", call_to_end, "on_retry", self._on_retry, task.error, task.deadline - now)

    def _log_retry(self, error: FoqsError, left_s: float) -> None:
        log.warning(
            "a call to %s failed: %s: %s; retrying for up to %.1f s (the next line comes after %.0f s without retries)",
            ",".join(map(str, self.pool.addresses)), error.code.name, error.message, left_s, QUIET_S,
        )  # fmt: skip


def server_timeout_ms(left_ms: float) -> int:
    """Return the time-out for the server: shorter than `left_ms`, so its reply arrives before the client gives up. A
    server takes no longer one than its `timeout_max_ms`."""
    return max(1, min(_SERVER_TIMEOUT_MS, int(left_ms - min(500.0, left_ms / 10))))
