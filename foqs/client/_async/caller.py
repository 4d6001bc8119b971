"""Requests and their answers over a pool of connections, with a second try where `foqs.second_answer` allows one."""

from __future__ import annotations

import asyncio  # async only
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from itertools import count
from math import inf
from time import monotonic
from typing import Any

from foqs.client._async.connection import Connection, open_connection
from foqs.client._async.waits import Condition, Event, Lock, renew_after_fork
from foqs.client.arguments import unlimited
from foqs.client.call import Busy, ClientClosed, end_of_tries
from foqs.client.credential import Token
from foqs.client.guard import SafeLog, call_to_end, guarded
from foqs.client.items import Item
from foqs.client.methods import (
    ACK_AND_DEQUEUE,
    DEQUEUE,
    SERVER_INFO,
    context,
    context_head,
    current,
    server_timeout_ms,
)
from foqs.client.per_worker import Ask
from foqs.client.routes import Address
from foqs.client.timing import Strategies
from foqs.client.tls import Securing
from foqs.client.wrong_peer import WrongPeer
from foqs.errors import FoqsError, LostReply, NotSent, Unavailable, Unreachable, named
from foqs.idl import idl
from foqs.travel import bare
from foqs.wire.client_codec import RemoteMethod
from foqs.wire.protocol import SMALL_BYTES, GoAway, Malformed

log = SafeLog()

_SEQUENCES = 0x7FFF_FFFF
QUIET_S = 60.0
AVOID_S = 1.0
"""An address that failed is tried last for this time; the time doubles with each further failed connection, up to"""
AVOID_AT_MOST_S = 30.0
OnRetry = Callable[[FoqsError, float], object]


class Caller:
    """Makes requests with one token over one pool. `traceparent` gives what they carry of the trace.
    `on_retry(error, left_s)` is called before the first retry, and before another only after `QUIET_S` without any.
    Without `wait_server` no call is tried again after Unreachable, until a server has answered one.
    """

    def __init__(
        self,
        pool: Pool,
        token: Token,
        attempt_timeout_ms: int,
        max_frame_bytes: int,
        traceparent: Callable[[], str | None] | None = None,
        on_retry: OnRetry | None = None,
        wait_server: bool = True,
        strategies: Strategies | None = None,
        program: str | None = None,
    ) -> None:
        self.pool = pool
        self.max_frame_bytes = max_frame_bytes
        self._token = token
        self._program = program
        self._context_head = b""
        self._attempt_timeout_ms = attempt_timeout_ms
        self._traceparent = traceparent
        self._wait_server = wait_server
        self._on_retry = on_retry or self._log_retry
        self._strategies = strategies or Strategies(None, None)
        self._retried_at = -inf
        self._sequence = count(1)
        self._unfinished: set[asyncio.Task[None]] = set()  # async only
        self.give_back: Callable[[Sequence[Item]], Awaitable[object]]  # async only
        pool.finish = self._finish  # async only
        self.retries = 0  # about: several callers may count at the same time
        self.waited_s = 0.0
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        self._closed = Event()

    def _finish(self, connection: Connection) -> None:  # async only
        """Have a request end whose caller was cancelled, so that its connection stays good."""
        connection.cut_off = False
        task = asyncio.get_running_loop().create_task(self._end_request(connection))
        self._unfinished.add(task)
        task.add_done_callback(self._unfinished.discard)

    async def _end_request(self, connection: Connection) -> None:  # async only
        """Take the reply for a caller that was cancelled. Give back the items that the reply leases."""
        dequeues = connection.method in (DEQUEUE, ACK_AND_DEQUEUE)
        if dequeues:
            connection.end_wait()
            connection.until = min(connection.until, monotonic() + self._attempt_timeout_ms / 1000)
        with suppress(FoqsError):
            response = await self.receive(connection)
            if dequeues and response.items:
                await self.give_back(response.items)

    async def finished(self, timeout_s: float) -> None:  # async only
        """Wait for the requests whose callers were cancelled. Drop late ones."""
        if self._unfinished:
            _, late = await asyncio.wait(self._unfinished, timeout=timeout_s)
            self.pool.finish = None  # so that the end of these tasks begins no other ones
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)

    @property  # async only
    def closed(self) -> bool:  # async only
        return self._closed.is_set()

    def close(self) -> None:
        """End the calls that wait to ask again, and fail all later ones."""
        self._closed.set()
        self.pool.close()

    async def ask(
        self,
        method: RemoteMethod,
        request: Any,
        deadline: float,
        *,
        repeatable: bool,
        to: Sequence[Address] = (),
        request_id: str | None = None,
        wait_ms: float = 0.0,
    ) -> Any:
        """One request, one response. Raises the typed error of the failure; the rest as for `send`."""
        sent = await self.send(
            method, request, deadline, repeatable=repeatable, wait_ms=wait_ms, to=to, request_id=request_id
        )
        return await self.receive(sent)

    async def send(
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
    ) -> Connection:
        """Send a request to the first of `to` that can be had; `receive` has to follow. The request is a struct
        without its context, or the bytes of its fields; without a `request_id` it is a call of its own. Raises NotSent
        (Busy without `wait`, when it would have to wait for a connection), Invalid.

        What must not be repeated gets all the time there is; else a silent server is left after the attempt's
        time-out, `wait_ms` being the wait of a long poll.
        """
        now = monotonic()
        until = deadline
        if repeatable:
            until = min(deadline, now + (self._attempt_timeout_ms + wait_ms) / 1000)
        server_ms = server_timeout_ms(int((until - now) * 1000 - wait_ms))
        request_id = request_id or current()
        if not self._context_head or (now >= self._token.due_s and self._token.look(now)):
            self._context_head = context_head(self._token.value, self._program)
        trace = None if self._traceparent is None else guarded("tracing a request", self._traceparent)
        about = context(self._context_head, request_id, trace, server_ms)
        sequence = next(self._sequence) & _SEQUENCES
        frame = method.encode(request, sequence, self.max_frame_bytes, about)
        connection = await self.pool.take(until, to, wait=wait)
        try:
            if len(frame) > SMALL_BYTES and self._token.value is not None and not connection.authenticated:
                await self._introduce(connection, until)
            await connection.send(frame, until)
        except BaseException as error:
            if isinstance(error, NotSent | WrongPeer):
                self.pool.avoid(connection.address)
            self.pool.give(connection, usable=False)
            if isinstance(error, WrongPeer):
                raise self._elsewhere(error) from error.__cause__
            raise
        connection.method, connection.sequence = method, sequence
        connection.request_id, connection.until = request_id, until
        return connection

    async def _introduce(self, connection: Connection, until: float) -> None:
        """Send the token in a small request: hosts that ask for one read large requests of authenticated connections
        only. The answer does not matter: if the token is refused, so is the request. Raises NotSent or WrongPeer."""
        sequence = next(self._sequence) & _SEQUENCES
        request = SERVER_INFO.request(context=idl.RequestContext(token=self._token.value))
        try:
            SERVER_INFO.decode(await connection.exchange(SERVER_INFO.encode(request, sequence), until), sequence)
        except (LostReply, GoAway, Malformed) as error:
            raise NotSent(f"{connection.address}: {error}") from error
        except (NotSent, WrongPeer):
            raise
        except FoqsError:
            return
        connection.authenticated = True

    async def receive(self, connection: Connection, places: Ask | None = None) -> Any:
        """Return the response to the request that was sent there, whose wait `places` may end. Raises the typed error
        of the failure."""
        usable = False
        try:
            if places is not None and places.waker is None:
                places = None
            response = connection.method.decode(await connection.receive(connection.until, places), connection.sequence)
            usable = connection.authenticated = self._wait_server = True
        except LostReply as error:
            self.pool.avoid(connection.address)
            named(error, connection.request_id)
            raise
        except WrongPeer as error:
            self.pool.avoid(connection.address)
            raise named(self._elsewhere(error), connection.request_id) from error.__cause__
        except Malformed as error:
            raise named(LostReply(f"{connection.address}: {error}"), connection.request_id) from error
        except FoqsError as answered:
            self._wait_server |= not isinstance(answered, NotSent)
            named(answered, connection.request_id)
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

    def give_up(self, connection: Connection) -> None:
        """Drop the request that was sent there: its reply is no longer needed."""
        self.pool.give(connection, usable=False)

    async def again(
        self, tries: int, error: FoqsError, retry_after_ms: int | None, begun: float, deadline: float
    ) -> bool:
        """Wait before a call is tried again, after its `tries`-th failure. Return False at once if it is not: the time
        or the client has ended, `retry_stop` says so, or no server was reached yet and `wait_server` is off."""
        if isinstance(error, Unreachable) and not self._wait_server:
            return False
        now = monotonic()
        pause_s = self._strategies.pause_s(tries, error, retry_after_ms, begun, now, random.random)
        if pause_s is None or self._closed.is_set() or now + pause_s >= deadline:
            return False
        self.retries += 1
        self.waited_s += pause_s
        quiet, self._retried_at = now - self._retried_at < QUIET_S, now
        if not quiet:
            guarded(
                "on_retry of the client", call_to_end, "on_retry", self._on_retry, error, end_of_tries(deadline) - now
            )
        await self._closed.wait(pause_s)
        return True

    async def pause(self, seconds: float) -> None:
        """Wait, but not longer than until the client is closed."""
        await self._closed.wait(seconds)

    def _log_retry(self, error: FoqsError, left_s: float) -> None:
        log.warning(
            "a call to %s failed: %s: %s; retrying for up to %.1f s (the next line comes after %.0f s without retries)",
            ",".join(map(str, self.pool.addresses)), error.code.name, error.message, left_s, QUIET_S,
        )  # fmt: skip


class Pool:
    """The connections of one client: at most `size`, kept while they work, spread over the addresses.

    Invariant: `_open` counts idle and lent connections (and those being opened), never above
    `size`.

    Deadlines are of the monotonic clock, in seconds.
    """

    def __init__(
        self,
        addresses: list[Address],
        size: int,
        connect_timeout_s: float,
        max_idle_s: float,
        securing: Securing | None = None,
    ) -> None:
        self.addresses = addresses
        self.size = unlimited(size)
        self._connect_timeout_s = connect_timeout_s
        self._max_idle_s = max_idle_s
        self._securing = securing
        self.finish: Callable[[Connection], object] | None = None  # async only
        self._turn = random.randrange(len(addresses))
        self._failed_at: dict[Address, float] = {}
        self._refused: dict[Address, int] = {}  # connections in a row that could not be made
        self._living: frozenset[Address] = frozenset()
        self._closed = False
        self._start()
        renew_after_fork(self)

    def _start(self) -> None:
        self._lock = Lock()
        self._change = Condition(self._lock)
        self._waiting = 0  # callers that wait for a change
        self._idle: list[Connection] = []
        self._open = 0

    @property
    def has_others(self) -> bool:
        """True if there is more than one address."""
        return len(self._living.union(self.addresses)) > 1

    def after_fork(self) -> None:
        """The connections belong to the parent, and close their copies here."""
        self._start()

    async def take(self, deadline: float, wanted: Sequence[Address] = (), *, wait: bool = True) -> Connection:
        """Return a connection for the caller alone, until `give`: to the first of `wanted` that did not fail
        lately and can be connected to; any of the client's own addresses, when there are none. Raises NotSent, or
        WrongPeer if none of the addresses is a port for this client; Busy
        when all are in use, at once without `wait`.
        """
        first = (self._in_turn(wanted) if self._failed_at else wanted)[0] if wanted else None
        while True:
            with self._lock:
                if self._idle and (first is None or self._idle[-1].address == first):
                    found: Connection | None = self._idle.pop()
                else:
                    found = await self._idle_or_slot(deadline if wait else 0.0, first)
            if found is None:
                break
            if monotonic() - found.idle_since < self._max_idle_s and found.usable():
                return found
            self.give(found, usable=False)
        try:
            return await self._connect(deadline, self._in_turn(wanted))
        except BaseException:
            self._free_slot()
            raise

    async def connect(self, address: Address, timeout_s: float = inf) -> Connection:
        """Open a connection that the pool does not count. Raises NotSent or WrongPeer."""
        return await open_connection(address, min(timeout_s, self._connect_timeout_s), self._securing)

    def give(self, connection: Connection, *, usable: bool) -> None:
        """Take back what `take` gave. Keep it if it is `usable`."""
        if connection.cut_off and self.finish is not None and not self._closed:  # async only
            self.finish(connection)
            return
        with self._lock:
            if usable and not self._closed:
                connection.idle_since = monotonic()
                self._idle.append(connection)
                if self._waiting:
                    self._change.notify()
                return
        connection.close()
        self._free_slot()

    def avoid(self, address: Address) -> None:
        """After a failure there: idle connections to it are dropped, and other addresses are preferred for a while."""
        with self._lock:
            self._failed_at[address] = monotonic()
            dropped = [c for c in self._idle if c.address == address]
            self._idle = [c for c in self._idle if c.address != address]
            self._open -= len(dropped)
            self._change.notify_all()
        for connection in dropped:
            connection.close()

    def living(self, hosts: Iterable[Address]) -> None:
        """Set the live hosts of the routing: drop connections to hosts that are gone, and forget failures of new
        ones."""
        with self._lock:
            before, self._living = self._living, frozenset(hosts)
        for address in before - self._living:
            self.avoid(address)
        with self._lock:
            # Not only hosts of `before`: a call to a host that is gone may fail later.
            kept = self._living.union(self.addresses) - self._living.symmetric_difference(before)
            for address in [address for address in [*self._failed_at, *self._refused] if address not in kept]:
                self._failed_at.pop(address, None)
                self._refused.pop(address, None)

    def close(self) -> None:
        """Idle connections are closed now, lent ones when they come back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            self._open -= len(idle)
            self._change.notify_all()
        for connection in idle:
            connection.close()

    async def _idle_or_slot(self, deadline: float, wanted: Address | None) -> Connection | None:
        """An idle connection to `wanted` (None: to any), or None when the caller may open one. Called with the lock."""
        while True:
            if self._closed:
                raise ClientClosed("the client is closed")
            for at in range(len(self._idle) - 1, -1, -1):
                if wanted is None or self._idle[at].address == wanted:
                    return self._idle.pop(at)
            if self._open < self.size:
                self._open += 1
                return None
            if self._idle:
                self._idle.pop(0).close()  # its slot is the caller's
                return None
            left = deadline - monotonic()
            if left <= 0:
                raise Busy(f"all {self.size} connections of the client are in use")
            # Looked at again at the end of the time: a notification that came just then woke no other caller.
            self._waiting += 1
            try:
                await self._change.wait(left)
            finally:
                self._waiting -= 1

    async def _connect(self, deadline: float, order: Sequence[Address]) -> Connection:
        error: FoqsError | None = None
        for address in order:
            left = deadline - monotonic()
            if left <= 0:
                break
            try:
                connection = await self.connect(address, left)
            except (NotSent, WrongPeer) as failed:
                # The call is tried again if one of the addresses may answer later.
                error = bare(failed) if error is None or isinstance(error, WrongPeer | Unreachable) else error
                self._refused[address] = self._refused.get(address, 0) + 1
                self.avoid(address)
            else:
                self._refused.pop(address, None)
                return connection
        try:
            raise error or NotSent("timed out before a connection was tried")
        finally:
            del error  # or it would hold itself, by this frame

    def _in_turn(self, wanted: Sequence[Address]) -> list[Address]:
        """`wanted`, or all addresses, another one first each time; after a failure an address is last for a while."""
        with self._lock:
            if not wanted:
                self._turn = (self._turn + 1) % len(self.addresses)
                wanted = self.addresses[self._turn :] + self.addresses[: self._turn]
            now = monotonic()
            return sorted(wanted, key=lambda address: self._avoided_until(address) > now)

    def _avoided_until(self, address: Address) -> float:
        failed_at = self._failed_at.get(address)
        if failed_at is None:
            return 0.0
        return failed_at + min(AVOID_AT_MOST_S, AVOID_S * 2.0 ** min(self._refused.get(address, 1) - 1, 10))

    def _free_slot(self) -> None:
        with self._lock:
            self._open -= 1
            self._change.notify()

    def __repr__(self) -> str:
        with self._lock:
            return f"Pool({self._open} open, {len(self._idle)} idle, at most {self.size})"
