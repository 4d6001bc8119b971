"""Learns in the background where to send requests: the owners of shards, and the hosts that have items of a topic."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from time import monotonic, time
from typing import Any

from foqs.client import methods
from foqs.client._async.caller import Caller, Pool
from foqs.client._async.connection import Connection
from foqs.client._async.waits import Background, Condition, Event, Lock, renew_after_fork
from foqs.client.credential import Token
from foqs.client.guard import SafeLog
from foqs.client.routes import (
    Address,
    Part,
    Routes,
    Spread,
    by_owner,
    hosts_by_topic,
    order,
    pieces,
    routes_of,
)
from foqs.client.timing import Backoff
from foqs.errors import FoqsError
from foqs.idl import idl
from foqs.wire.protocol import Malformed

log = SafeLog()

WAIT_MS = 10_000
_MARGIN_MS = 2_000
"""Beyond the wait: a host that is silent for longer is left for another."""
_FRESH_S = 2.0
"""Topics are asked again after this time. A wrong answer costs a hop, because hosts know better."""
_TOPICS, _TOPICS_TIMEOUT_S = 10_000, 2.0
_FEW_ITEMS = 10
"""Larger calls go to all hosts in turn: a backlog that grows fast is even on all hosts, or less urgent items of a host
with few items would be delivered first."""
_BACKLOG = 100
"""Fewer ready items are gone before the answer is used where all clients send to one host at a time."""
_AGAIN = Backoff(first_ms=50, longest_ms=5_000)
_TOGETHER_S = 0.05
"""After a change: further changes within this time are learned together."""
_FIRST_S = 0.25
"""The longest wait for the first answer, before many items are sent. A host that answers does so in milliseconds."""


def sample(hosts: Sequence[Address], count: int) -> Sequence[Address]:
    """Return `count` random hosts. `random.sample` takes longer for few hosts than the rest of a request."""
    if len(hosts) < 2:
        return hosts[:count]
    left = list(hosts)
    for at in range(count):
        chosen = at + int(random.random() * (len(left) - at))
        left[at], left[chosen] = left[chosen], left[at]
    return left[:count]


class Router:
    """Keeps the routing fresh: one question that waits, to one host at a time.

    `routes` is a value that is replaced; `only` are the hosts to try for any request, None if there is a
    choice. The work begins with `begin` and ends with `close`. Without `enabled` it never begins. The pool learns the
    hosts of each routing. A client works without a routing, too.
    """

    def __init__(self, pool: Pool, token: Token, *, enabled: bool = True) -> None:
        self._pool = pool
        self._given = pool.addresses
        self._set(Routes())
        self._token = token
        self._enabled = enabled
        self._connection: Connection | None = None
        self._closed = False
        self._start()
        renew_after_fork(self)

    def _start(self) -> None:
        self._change = Condition()
        self._background = Background("foqs-router", self._run)
        self._spread = Spread(random.expovariate)
        self.begun = not self._enabled
        self._asked = not self._enabled or self.routes.version is not None  # all known hosts were asked once

    def after_fork(self) -> None:
        """The work is done in the parent, and so is its connection, which closes its copy here."""
        self._start()
        self._connection = None

    def known(self) -> Collection[Address] | None:
        """Return all addresses of the service, None while there may be more."""
        routes = self.routes
        return {*self._given, *routes.hosts} if routes.version is not None or not self._enabled else None

    def begin(self) -> None:
        """Start the work, unless it has begun. Called before every call that finds `begun` False."""
        with self._change:
            if not self._closed:
                self._background.begin()
                self.begun = True

    async def wait(self, until: float) -> None:
        """Wait a moment for the first routing. Without it, all new items would go to a host that the user gave. `until`
        is of the monotonic clock, in seconds."""
        if self._asked:
            return
        with self._change:
            await self._change.wait_for(lambda: self._asked or self._closed, min(_FIRST_S, until - monotonic()))
            self._asked = True

    async def end(self) -> None:  # async only
        """Close it, and wait for the end of the work."""
        self.close()
        await self._background.end()

    def close(self) -> None:
        with self._change:
            self._closed = True
            if self._connection is not None:
                self._connection.abort()
            self._change.notify_all()

    def order(self, among: Collection[Address] = (), last: Collection[Address] = ()) -> tuple[Address, ...]:
        """Return the hosts to try for one request; see `foqs.client.routes.order`."""
        return order(self.routes, self._given, sample, among=among, last=last)

    def order_at(self, host: Address | None) -> tuple[Address, ...]:
        """Return the hosts to try for a request to `host`, None: to any. A routing has one order for each host."""
        if host is None:
            return self.order()
        orders = self._orders
        found = orders.get(host)
        if found is None:
            found = orders[host] = self.order((host,))
        return found

    def order_for(self, item_id: Any) -> tuple[Address, ...]:
        """Return the hosts to try for a request about one item."""
        return self.order_at(self.routes.owner(item_id))

    def order_for_slot(self, slot: int | None) -> tuple[Address, ...]:
        """Return the hosts to try for a request about one slot of deduplication keys."""
        return self.order_at(self.routes.owner_of_hash_slot(slot))

    def order_for_new(self) -> tuple[Address, ...]:
        """Return the hosts to try for a new item that any host may store: the host whose turn it is, or as
        `foqs.client.routes.Spread` says. With more hosts than connections that is a random one: each would need a new
        connection."""
        routes = self.routes
        host = routes.host_in_turn(time())
        if host is None and (routes.alone or len(routes.serving) > self._pool.size):
            return self.order()
        return self.order_at(host or self._spread.next(routes, 1))

    def order_for_items(self, having: Collection[Address]) -> tuple[Address, ...]:
        """Return the hosts to ask for items: one of `having`, which have some; else the host whose turn it is, which
        gets new items."""
        host = None if having else self.routes.host_in_turn(time())
        return self.order(having) if host is None else self.order_at(host)

    def spread(self, asked: Sequence[int], refused: Mapping[int, Address]) -> list[Part]:
        """Return the indices `asked` of new items that any host may store, by the hosts to send them to."""
        routes, last = self.routes, set(refused.values())
        groups: dict[Address | None, list[int]] = {}
        parts = () if routes.alone else pieces(asked)
        turn = None if last or len(asked) > _FEW_ITEMS else routes.host_in_turn(time())
        for piece in parts:
            groups.setdefault(turn or self._spread.next(routes, len(piece), last), []).extend(piece)
        if len(groups) < 2:
            return [Part(self.order(tuple(host for host in groups if host is not None), last), asked)]
        return [Part(self.order(() if host is None else (host,), last), group) for host, group in groups.items()]

    def split(
        self,
        owner_of: Callable[[Routes, Any], Address | None],
        ids: Sequence[Any],
        asked: Sequence[int],
        refused: Mapping[int, Address],
    ) -> list[Part]:
        """Return the indices `asked` of `ids`, by owner; see `foqs.client.routes.by_owner`."""
        routes = self.routes
        if routes.alone:
            return [Part(self.order(), asked)]
        return [
            Part(self.order_at(owner) if owner else self.order(last={refused[i] for i in group if i in refused}), group)
            for owner, group in by_owner(partial(owner_of, routes), ids, asked, refused).items()
        ]

    # ------------------------------------------------------------------------------------- in the background

    async def _run(self) -> None:
        failures = 0
        while not self._closed:
            hosts = random.sample(self.routes.hosts, len(self.routes.hosts))
            for address in dict.fromkeys((*hosts, *self._given)):
                if await self._follow(address) or self._closed:
                    failures = 0
                    break
            else:
                failures += 1
                self._first_asked()
                await self._pause(_AGAIN.delay_ms(failures, random.random) / 1000)

    async def _follow(self, address: Address) -> bool:
        """Ask one host until it fails. Return True if it ever waited or had a change."""
        followed = False
        try:
            connection = await self._pool.connect(address)
        except FoqsError:
            return False
        try:
            with self._change:
                self._connection = connection
            # The first is answered at once: another host may see the cluster otherwise.
            self._learn(await self._ask(connection, 1, None))
            self._first_asked()
            sequence = 1
            while not self._closed:
                sequence += 1
                asked, version = monotonic(), self.routes.version
                self._learn(await self._ask(connection, sequence, version))
                news = self.routes.version != version
                if not news and monotonic() - asked < WAIT_MS / 2_000:
                    return False  # it does not wait: it stops
                followed = True
                if news:
                    await self._pause(_TOGETHER_S)
        except (FoqsError, Malformed) as error:
            log.debug("no routing from %s: %s", address, error)
        finally:
            with self._change:
                self._connection = None
            connection.close()
        return followed

    async def _ask(self, connection: Connection, sequence: int, version: int | None) -> Routes:
        context = idl.RequestContext(token=self._token.value, timeout_ms=WAIT_MS + _MARGIN_MS)
        request = idl.GetRoutingRequest(version=version, wait_ms=0 if version is None else WAIT_MS, context=context)
        until = monotonic() + (request.wait_ms + _MARGIN_MS) / 1000
        return routes_of(
            methods.ROUTING.decode(
                await connection.exchange(methods.ROUTING.encode(request, sequence), until), sequence
            )
        )

    def _first_asked(self) -> None:
        if not self._asked:
            with self._change:
                self._asked = True
                self._change.notify_all()

    def _learn(self, routes: Routes) -> None:
        if routes.version != self.routes.version and routes.hosts:  # none: it has not heard of itself yet
            self._set(routes)
            self._pool.living(routes.hosts)

    def _set(self, routes: Routes) -> None:
        self.routes = routes
        self.only = self.order() if routes.alone else None
        self._orders: dict[Address, tuple[Address, ...]] = {}  # after the routes: no order of earlier ones gets in

    async def _pause(self, seconds: float) -> None:
        with self._change:
            await self._change.wait_for(lambda: self._closed, seconds)


class Topics:
    """Which hosts have items of which topics ready, as far as one answer says."""

    def __init__(self, caller: Caller, router: Router, namespace: str) -> None:
        self._caller = caller
        self._router = router
        self._namespace = namespace
        self._having: Mapping[str, frozenset[Address]] = {}
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        self._closed = Event()
        self._change = Lock()
        self._background = Background("foqs-topics", self._run)
        self._wanted = False

    async def end(self) -> None:  # async only
        """Close it, and wait for the end of the work."""
        self.close()
        await self._background.end()

    def close(self) -> None:
        self._closed.set()

    def having(self, topics: Iterable[str], *, first: bool = True) -> frozenset[Address]:
        """Return the hosts that had items of the first of `topics` with items, empty if that is not known. Without
        `first`, take a random topic with items, so that no topic is served last."""
        self._wanted = True
        if not self._background.running:
            with self._change:
                if not self._closed.is_set():
                    self._background.begin()
        having = self._having
        found = (hosts for topic in topics if (hosts := having.get(topic)))
        if first:
            return next(found, frozenset())
        some = list(found) if having else ()
        return random.choice(some) if some else frozenset()

    async def _run(self) -> None:
        while self._still_wanted():
            try:
                self._having = hosts_by_topic(await self._active(), _BACKLOG if self._router.routes.quiet else 0)
            except FoqsError as error:
                self._having = {}
                log.debug("which hosts have which topics is not known: %s", error)
            await self._closed.wait(_FRESH_S)

    async def _active(self) -> Iterable[Any]:
        """Return the active topics (GetActiveTopics)."""
        request = idl.GetActiveTopicsRequest(ns=self._namespace, limit=_TOPICS)
        deadline = monotonic() + _TOPICS_TIMEOUT_S
        to = self._router.order()
        sent = await self._caller.send(methods.TOPICS, request, deadline, repeatable=True, to=to, wait=False)
        response = await self._caller.receive(sent)
        return response.topics or ()

    def _still_wanted(self) -> bool:
        with self._change:
            wanted = self._background.running = self._wanted and not self._closed.is_set()
            self._wanted = False
            if not wanted:
                self._having = {}  # before the work may begin again, and learn
            return wanted
