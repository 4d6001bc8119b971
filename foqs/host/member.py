"""A host of a cluster: ZooKeeper's facts go in, the shards that it has to serve are taken and released.

What follows from the facts is done by its `foqs.host.seat`; here are the event loop, the clock and the node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from threading import Thread
from uuid import uuid4

import structlog

from foqs.config import Config
from foqs.host.loads import Loads
from foqs.host.marks import ClusterMarks
from foqs.host.neighbours import Neighbours
from foqs.host.node import Node
from foqs.host.seat import Seat
from foqs.sections import ZookeeperSection
from foqs.shardmgr.controller import ControllerSettings
from foqs.shardmgr.facts import Facts, HostFact, ShardFact
from foqs.shardmgr.membership import Held
from foqs.shardmgr.routing import Routing, routing_of
from foqs.store.link import reachable
from foqs.store.protocol import ShardStore
from foqs.zk.protocol import FactStore

log = structlog.get_logger("foqs.host")

_CLOSE_S = 2.0
_CLOSE_UNKNOWN_S = 0.2
_LINGER_S = 0.5
"""How long a host whose shards were moved away still takes requests for others: clients that follow the routing come no
more after that, and a request that meets a connection just being closed would be lost."""


class Member:
    """`make_store(shard number, url)` gives a closed store. All methods run on the event loop.

    `fatal(why)` is called when the host cannot go on: another process has its id. A `shared_port` is one that other
    hosts on this machine listen on as well.
    """

    def __init__(
        self,
        config: Config,
        zookeeper: ZookeeperSection,
        facts: FactStore,
        make_store: Callable[[int, str], ShardStore],
        fatal: Callable[[str], None],
        shared_port: int | None = None,
    ) -> None:
        self._config = config
        self._zookeeper = zookeeper
        self._store = facts
        self._fatal = fatal
        self._shared_port = shared_port
        self._loop = asyncio.get_running_loop()
        self._id = config.server.id
        self._urls: dict[int, str] = {}
        self._routing = Routing()
        neighbours = Neighbours(lambda: self._routing, zookeeper.handover_ms, self._act_soon)
        self.node = Node(
            config,
            lambda number: make_store(number, self._urls[number]),
            neighbours=neighbours,
            marks=ClusterMarks(facts),
        )
        assert self.node.ask is not None
        self._loads = Loads(self.node.ask, self._loop_ms)
        self.seat = Seat(self._id, _settings(zookeeper), zookeeper.handover_ms, facts, self, self.node.now_ms)
        self.node.service.share_slots = self.seat.share_slots
        assert self.node.forwarder is not None
        self.node.forwarder.slot_moves.arrived = self.seat.slots_arrived
        self._told = asyncio.Event()
        self._seen = asyncio.Event()  # ourselves, in the facts
        self._due = False
        self._timer: asyncio.TimerHandle | None = None
        self._measuring: asyncio.TimerHandle | None = None
        self._releases: set[asyncio.Task[None]] = set()

    # ------------------------------------------------------------------------------------- life

    async def start(self) -> tuple[str, int]:
        """Waits for ZooKeeper's facts, then listens and joins the cluster: before that it could only refuse what others
        can do. While another process has this host's id, it waits too. A shared port waits until others know this host.
        (host, port); OSError when it cannot listen."""
        host, port = await self.node.bind()
        self._store.start(self._changed, self.seat.session)
        await self._told.wait()
        await self._alone()
        await self.node.server.serve()
        self.seat.join(HostFact(self._id, self.node.address, uuid4().hex))
        self._measure()
        if self._shared_port is not None:
            await self._seen.wait()
            await self.node.share(self._shared_port)
        return host, port

    async def _alone(self) -> None:
        """Returns when no process at another address has this host's id."""
        logged = ""
        while (twin := self.seat.twin(self.node.address)) is not None:
            if twin.address != logged:
                logged = twin.address
                log.warning("host.waiting", host=self._id, address=twin.address, reason="another process has this id")
            self._told.clear()
            await self._told.wait()

    async def stop(self) -> bool:
        """Has its shards moved to others while it serves, then stops. False when the grace was too short."""
        deadline = self._loop.time() + self._config.server.grace_ms / 1000
        seat = self.seat
        if seat.fact is not None:
            seat.join(replace(seat.fact, leaving=True))
        await self.node.until(lambda: not (self.node.host.shards and seat.fresh and seat.others()), deadline)
        if seat.fact is not None and seat.fresh and seat.others():
            await asyncio.sleep(max(0.0, min(_LINGER_S, deadline - self._loop.time())))
        seat.end()
        clean = await self.node.stop()
        for timer in (self._timer, self._measuring):
            if timer is not None:
                timer.cancel()
        closed = asyncio.Event()
        self._store.close(closed.set)
        try:
            # Before the first facts there is no session that others would have to wait for.
            async with asyncio.timeout(_CLOSE_S if self._told.is_set() else _CLOSE_UNKNOWN_S):
                await closed.wait()
        except TimeoutError:
            log.warning("session.not_ended", host=self._id)
        return clean

    def reconfigure(self, config: Config) -> None:
        """As `Node.reconfigure`."""
        assert config.zookeeper is not None
        self._config, self._zookeeper = config, config.zookeeper
        self.node.reconfigure(config)
        self.seat.reconfigure(_settings(config.zookeeper))
        if self._measuring is not None:  # it has started
            self._measuring.cancel()
            self._measure()
        self._act_soon()

    # ------------------------------------------------------------------------------------- what ZooKeeper tells

    def _changed(self, facts: Facts) -> None:
        fatal = self.seat.changed(facts)
        self._told.set()
        if self.seat.seen:
            self._seen.set()
        routing = routing_of(facts)
        if routing != self._routing:
            self._routing = routing
            self.node.service.routing_changed()
        if fatal is not None:
            self._fatal(fatal)
        self._act_soon()

    # ------------------------------------------------------------------------------------- what is done

    def _act_soon(self) -> None:
        if not self._due:
            self._due = True
            self._loop.call_soon(self._act)

    def _act(self) -> None:
        self._due = False
        now_ms = self._loop_ms()
        self._ring(self.seat.act(now_ms, self._loads.measured), now_ms)

    def _measure(self) -> None:
        """Whoever balances has to know how busy the shards are."""
        self._measuring = self._loop.call_later(self._zookeeper.balance_every_ms / 2_000, self._measure)
        facts = self.seat.facts
        if self.seat.fresh and facts.controller == self._id:
            self._loads.ask(host.address for host in facts.hosts.values())
        else:
            self._loads.forget()

    def _loop_ms(self) -> int:
        return int(self._loop.time() * 1000)

    # ------------------------------------------------------------------------------------- the shards of the node

    def held(self) -> Mapping[int, Held]:
        return {
            number: Held(self._urls[number], shard.state, shard.epoch)
            for number, shard in self.node.host.shards.items()
        }

    def take(self, fact: ShardFact, epoch_above: int) -> None:
        self._urls[fact.id] = fact.url
        self.node.take(fact.id, epoch_above)

    def release(self, number: int) -> None:
        deadline = self._loop.time() + self._zookeeper.handover_ms / 1000
        task = self._loop.create_task(self.node.release(number, deadline))
        self._releases.add(task)
        task.add_done_callback(self._released)

    def doubt(self, number: int) -> None:
        self.node.doubt(number)

    def seal(self, sealed: frozenset[int]) -> None:
        for number, shard in self.node.host.shards.items():
            shard.takes_new = number not in sealed

    def down(self) -> Collection[int]:
        assigned, node = self.seat.facts.assignment.hosts, self.node
        node.unreachable = {number for number in node.unreachable if assigned.get(number) == self._id}
        return node.unreachable.union(shard.number for shard in node.host.shards.values() if shard.lost)

    def probe(self, fact: ShardFact, done: Callable[[bool], None]) -> None:
        """In a thread of its own: the process may end while a server keeps it waiting."""

        store = self._config.store
        connect_s, io_s = store.connect_timeout_ms / 1000, store.io_timeout_ms / 1000

        def finish(ok: bool) -> None:
            done(ok)
            self._act_soon()

        def run() -> None:
            ok = reachable(fact.url, connect_timeout_s=connect_s, io_timeout_s=io_s)
            with suppress(RuntimeError):  # the loop is closed: the host has ended
                self._loop.call_soon_threadsafe(finish, ok)

        Thread(target=run, name=f"probe-{fact.id}", daemon=True).start()

    def _released(self, task: asyncio.Task[None]) -> None:
        self._releases.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            log.error("shard.release_failed", exc_info=fault)

    def _ring(self, at_ms: int | None, now_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if at_ms is not None:
            self._timer = self._loop.call_later(max(1, at_ms - now_ms) / 1000, self._act_soon)


def _settings(zookeeper: ZookeeperSection) -> ControllerSettings:
    return ControllerSettings(
        session_timeout_ms=zookeeper.session_timeout_ms,
        settle_ms=zookeeper.settle_ms,
        balance_every_ms=zookeeper.balance_every_ms,
        max_moves=zookeeper.max_moves,
    )
