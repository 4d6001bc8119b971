"""A host process: the event loop, the Thrift server, the engine with a thread for every shard, and the other hosts.

A lone host is a cluster that never changes: it runs the same node with `LONE` and `NoPeers`, and opens no connection.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from time import perf_counter
from typing import Any

import structlog

from foqs.api.auth import Guard, make_guard
from foqs.api.handlers import Handlers
from foqs.api.host import Host
from foqs.bounds import Budget, Limits
from foqs.buffers.item_batches import BatchLinks
from foqs.checks import host_port
from foqs.config.load import Config
from foqs.config.schema import TlsSection
from foqs.engine.engine import Engine
from foqs.engine.state import Callbacks
from foqs.errors import Invalid
from foqs.event_loop import until
from foqs.hooks.topic_hooks import TopicHooks
from foqs.peers.coordinator import HashSlotOwners, LoneHashSlotOwners
from foqs.peers.forwarded import Timers
from foqs.peers.forwarder import Forwarder, LoneForwarder
from foqs.peers.lending import Lending
from foqs.peers.ready_topics import ReadyPublisher
from foqs.peers.settings_sync import HostSettings
from foqs.peers.tenant_shares import TenantShares
from foqs.policies.settings import SettingsStore
from foqs.rpc.call import RequestLog
from foqs.rpc.certificates import Certificates, Contexts
from foqs.rpc.peer_caller import PeerCaller
from foqs.rpc.server import ThriftServer
from foqs.server.clock import Clock, HostClock, HostTimers, Survey, monotonic_ms
from foqs.server.hook_pool import HookLog, HookPool
from foqs.server.load import Load
from foqs.server.marks import MarkStore
from foqs.server.outages import Pulse, pulsed_server
from foqs.server.settings import ClusterSettings, SettingsLog, ShardSettings, schedule_refused
from foqs.server.shard_runner import ShardRunner
from foqs.server.vitals import Vitals
from foqs.shardmgr.facts import SlotMove
from foqs.shardmgr.routing import Routing
from foqs.store.passwords import placed
from foqs.store.protocol import ShardStore, StoreError, explained

log = structlog.get_logger("foqs.host")

_SAVE_MARKS_S = 1.0
_ANY = ("0.0.0.0", "::")


def _nothing(*_: Any) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The part of the cluster that a node knows. `changed()` is called when a shard came, went, or changed its state;
    `share_slots()` when a slot of deduplication keys has no shard; `slots_arrived(moves)` when the rows of slots are
    where these moves put them.

    `static`: the host keeps the shards of its configuration. Any other host has the shards that its membership assigns.
    `settings`: where the cluster keeps the settings of namespaces.
    """

    routing: Callable[[], Routing]
    handover_ms: int
    changed: Callable[[], None]
    share_slots: Callable[[], None] = _nothing
    slots_arrived: Callable[[Mapping[int, SlotMove]], None] = _nothing
    static: bool = False
    settings: SettingsStore | None = None


LONE = Neighbours(routing=Routing, handover_ms=0, changed=_nothing, static=True)


class LoopTimers:
    """The clocks of a host and the timers of its event loop; see `foqs.peers.forwarded.Timers`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, now_ms: Callable[[], int]) -> None:
        self._loop = loop
        self.now_ms = now_ms
        self.monotonic_ms = monotonic_ms
        self.soon = loop.call_soon

    def later(self, after_ms: int, do: Callable[[], None], /) -> asyncio.TimerHandle:
        return self._loop.call_later(after_ms / 1000, do)


class NoPeers:
    """The peers of a lone host, which has none: see `Peers`."""

    def __init__(self, engine: Engine, address: Callable[[], str], timers: Timers, requests: RequestLog) -> None:
        self.forwarder = LoneForwarder(engine, address, timers, requests)
        self.hash_slot_owners = LoneHashSlotOwners(engine, timers)
        self.slots_written = self.forwarder.share_slots

    def limit(self, limits: Limits) -> None:
        """Requests to other hosts have these limits: there are none."""

    def secure(self, tls: ssl.SSLContext | None, introduction: tuple[str, Any] | None) -> None:
        """New connections to other hosts use this: there are none."""

    def close(self) -> None:
        """There is no connection to close."""


class Peers:
    """Connections to other hosts, and the forwarding of requests over them."""

    def __init__(
        self,
        limits: Limits,
        budget: Budget,
        engine: Engine,
        guard: Guard,
        tls: ssl.SSLContext | None,
        neighbours: Neighbours,
        timers: Timers,
        requests: RequestLog,
    ) -> None:
        self.caller = PeerCaller(limits, budget, tls=tls, introduction=guard.introduction())
        self.forwarder = Forwarder(
            engine,
            neighbours.routing,
            guard.proven(self.caller.call),
            self.caller.cut,
            timers,
            requests,
            handover_ms=neighbours.handover_ms,
            slots_arrived=neighbours.slots_arrived,
            share_slots=neighbours.share_slots,
        )
        self.hash_slot_owners = HashSlotOwners(engine, timers, self.forwarder.slot_moves.adopt)
        self.slots_written = _nothing

    def limit(self, limits: Limits) -> None:
        self.caller.limits = limits

    def secure(self, tls: ssl.SSLContext | None, introduction: tuple[str, Any] | None) -> None:
        """Use this context and this introduction on new connections to other hosts."""
        self.caller.tls = tls
        self.caller.introduce(introduction)

    def close(self) -> None:
        self.caller.close()


class Node:
    """`make_store(shard number)` returns a closed store; `marks` stores how far the shards' ids went, and
    `survey` reads the clocks of all databases that the host knows of. `url_of(shard number)` is the URL of its
    database, by default the configuration's. `clock` and `timers`: by default the machine's and the event
    loop's, which also bounds waits for databases, scripts and connections. All methods run on the event loop.

    A host in a cluster takes and releases shards as its membership says. A lone host keeps the shards of its
    configuration, and waits as a standby for shards that another host holds.
    """

    def __init__(
        self,
        config: Config,
        make_store: Callable[[int], ShardStore],
        *,
        take_over: bool = False,
        neighbours: Neighbours = LONE,
        marks: MarkStore | None = None,
        survey: Survey | None = None,
        url_of: Callable[[int], str] | None = None,
        clock: HostClock | None = None,
        timers: HostTimers | None = None,
        rng: Random | None = None,
    ) -> None:
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._clock = clock or Clock()
        timers = timers or LoopTimers(self._loop, self._clock.now_ms)
        self._later = timers.later
        self._listening = ""
        limits = config.limits.limits()
        budget = Budget(config.host.budget_bytes)
        self.requests = RequestLog(perf_counter, config.log.slow_request_ms)
        self.guard = make_guard(config, self._loop.time)
        self.certificates = Certificates(config.tls, time.time, self._secured)
        self.hook_pool = HookPool(config.hooks, limits, self._loop, monotonic_ms, self._clock.now_ms)
        ready = lambda key: self.engine.ready(key)  # noqa: E731, PLW0108 - the engine is made below, with the publisher
        self.news = ReadyPublisher(ready, self._clock.now_ms(), self._loop.call_soon, self._later)
        callbacks = Callbacks(
            served=lambda: self.service.routing_changed(),  # noqa: PLW0108 - the handlers are made below
            became_ready=None if neighbours.static else self.news.became_ready,
            ready_again=self.news.again,
            left_waiting=lambda key: self.forwarder.fetch(key),  # noqa: PLW0108
            slots_written=lambda: self.peers.slots_written(),  # noqa: PLW0108
            ask_script=lambda attempt, decided: self.hooks.ask(attempt, decided),  # noqa: PLW0108
            tell_keys=lambda keys, told: self.forwarder.key_changes.tell(keys, told),  # noqa: PLW0108
            batches=BatchLinks(
                lambda *reports: self.forwarder.batches.tell_homes(*reports),  # noqa: PLW0108
                lambda *questions: self.forwarder.batches.ask_members(*questions),  # noqa: PLW0108
                lambda: self.forwarder.batches.all_shards(),  # noqa: PLW0108
            ),
            tokens_wanted=lambda: self.lending.throttles.wanted(),  # noqa: PLW0108
            monotonic_ms=timers.monotonic_ms,
        )
        self.runner = ShardRunner(
            config,
            make_store,
            budget,
            self._clock,
            self._loop,
            timers,
            marks,
            callbacks,
            static=neighbours.static,
            take_over=take_over or not neighbours.static,
            changed=neighbours.changed,
            served=lambda: self.forwarder.shard_served(),  # noqa: PLW0108
            serves=lambda: self.server.serves,
            keeper=lambda: self.keeper,
            survey=survey,
            rng=rng,
        )
        self.engine: Engine = self.runner.engine
        urls = {section.id: section.url for section in config.shards}
        url: Callable[[int], str] = url_of or (lambda number: urls.get(number, ""))
        server = lambda number: pulsed_server(url(number))  # noqa: E731
        self.pulse = Pulse(
            self.engine, server, self.runner.opening_ms, neighbours.changed, self._clock.now_ms, self._later
        )
        self.hooks = TopicHooks(
            self.engine.state.policies,
            self.hook_pool,
            self._clock.now_ms,
            monotonic_ms,
            lambda: self._config.hooks.request_ms,
            HookLog(self._loop.time).failed,
        )
        self.settings: HostSettings = HostSettings(self.engine, SettingsLog().applied)
        self.keeper: ShardSettings | ClusterSettings
        if neighbours.settings is None:
            self.keeper = ShardSettings(self.engine.state.shards, self.settings, self.runner.workers, self._later)
        else:
            self.keeper = ClusterSettings(neighbours.settings, self.settings, self.runner.workers, self._later)
        self.peers: Peers | NoPeers
        if neighbours.static:
            self.peers = NoPeers(self.engine, lambda: self.address, timers, self.requests)
        else:
            self.peers = Peers(
                limits, budget, self.engine, self.guard, self.certificates.peer, neighbours, timers, self.requests
            )
        self.forwarder: Forwarder = self.peers.forwarder
        self.lending = Lending(self.engine, self.forwarder, self.peers.hash_slot_owners, timers)
        shares = TenantShares(self.engine, self.forwarder, timers)
        if not neighbours.static:
            self.lending.coordinator.watch()
            shares.begin()
        host = Host(self.engine, limits, self._clock.now_ms, lambda: self.address, self.forwarder, self.guard.rights_of)
        hosts = lambda: len(neighbours.routing().hosts)  # noqa: E731
        rows = lambda: sum([shard.queue.chunk_rows for shard in self.engine.state.serving])  # noqa: E731
        self._load = Load(hosts, rows, lambda: self.service.routing_changed(), timers)  # noqa: PLW0108
        if not neighbours.static:
            self._load.begin()
        self.service: Handlers = Handlers(
            host,
            self.news,
            self.lending,
            shares,
            self.settings,
            self.keeper,
            self.hooks,
            lambda: self._load.quiet,
            timers,
        )
        self.service.scheduler.begin(schedule_refused)
        self.vitals = Vitals(
            self.engine.state,
            config.server.id,
            lambda: self.address,
            self._clock.now_ms,
            lambda: {number: url(number) for number in self.engine.state.shards},
            self.away,
            lambda: self.read_only,
            self.runner.opening_ms,
            lambda: self.runner.clock_note,
            lambda: None if self.certificates.contexts is None else self.certificates.contexts.dates.ends_s,
        )
        self.service.status.report = self.vitals.report
        self.server = ThriftServer(
            self.guard.over(self.service.handlers()),
            limits,
            budget,
            config.server.max_connections,
            frame_timeout_s=config.server.frame_read_ms / 1000,
            idle_timeout_s=config.server.idle_connection_ms / 1000,
            tls=self.certificates.server,
            max_connections_per_address=config.server.max_connections_per_address,
            namespaces=self.engine.state.counters.namespaces,
            requests=self.requests,
            trusts=self.guard.trusts,
        )

    @property
    def unreachable(self) -> set[int]:
        """Shards that were not opened the last time because their database did not answer."""
        return self.runner.driver.unreachable

    @property
    def read_only(self) -> set[int]:
        """Shards whose database takes no writes, as far as this host knows."""
        lost = {number for number, shard in self.engine.state.shards.items() if shard.owner.read_only}
        return self.runner.driver.read_only | lost

    def away(self) -> set[int]:
        """Return the shards whose database does not answer, or takes no writes, as far as this host knows."""
        return self.unreachable.union(self.pulse.silent_ms())

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def machine_ahead_ms(self) -> int:
        """Return how far the machine's clock is ahead of the host's, which follows the databases' clocks."""
        return self._clock.machine_ahead_ms()

    @property
    def address(self) -> str:
        """The host:port that clients use. Where the system picks the port, it is known once the node listens."""
        return self._config.server.advertise or self._listening

    @property
    def stopping(self) -> bool:
        return self.runner.driver.stopping

    def reconfigure(self, config: Config) -> None:
        """Apply `config`, which differs from the present configuration in live keys alone."""
        before, self._config = {section.id: section.url for section in self._config.shards}, config
        for section in config.shards:
            if section.url != before[section.id]:
                self._use_url(section.id, placed(section.url, config.store.secrets_dir))
        server, limits = config.server, config.limits.limits()
        self.service.host.limits = limits
        self.server.limit(limits)
        self.server.bound(
            server.max_connections,
            server.max_connections_per_address,
            server.frame_read_ms / 1000,
            server.idle_connection_ms / 1000,
        )
        self.hook_pool.reconfigure(config.hooks, limits)
        self.peers.limit(limits)
        self.requests.bound(config.log.slow_request_ms)
        self.guard.read_again()
        if config.auth is not None:
            self.guard.take_secrets(config.auth.cluster_secret, config.auth.cluster_secret_previous)
        self.peers.secure(self.certificates.peer, self.guard.introduction())
        if config.tls is not None:
            self._read_certificates(config.tls)
        self.engine.reconfigure(config)

    def _use_url(self, number: int, url: str) -> None:
        """Use another password for the next connection of a shard."""
        try:
            self.runner.use_url(number, url)
        except StoreError as error:
            log.error("shard.url_refused", shard=number, reason=explained(error))
        else:
            log.info("shard.url_changed", shard=number)

    def _read_certificates(self, section: TlsSection) -> None:
        """Read the certificates on a thread, because a disk may hang. Of two readings, the later one counts."""
        reading = self._reading = self._loop.run_in_executor(None, self.certificates.read_again, section)

        def read(done: asyncio.Future[Contexts | Invalid]) -> None:
            if done is self._reading:
                self.certificates.take(done.result())

        reading.add_done_callback(read)

    def _secured(self, contexts: Contexts) -> None:
        self.server.tls = contexts.server
        self.peers.secure(contexts.peer, self.guard.introduction())

    # ------------------------------------------------------------------------------------- life

    async def start(self) -> tuple[str, int]:
        """Take the port, open the shards, and serve once one is open and all were tried or a second has passed.

        Return (host, port). Raises OSError if the port is taken, before a shard is opened.
        """
        address = await self.bind()
        for number in list(self.engine.state.shards):
            self.runner.take(number)
        if self.engine.state.shards:
            await self.runner.ready.wait()
        await self.server.serve()
        return address

    async def bind(self) -> tuple[str, int]:
        """Take the port and return (host, port). Raises OSError if the port is taken."""
        host, port = await self.server.bind(self._config.server.host, self._config.server.port)
        name = socket.gethostname() if host in _ANY else host
        self._listening = host_port(name, port)
        self.pulse.begin()
        self.vitals.start()
        return host, port

    async def share(self, port: int) -> None:
        """Listen on a port that other processes share, too. Raises OSError if that fails."""
        await self.server.bind(self._config.server.host, port, shared=True)
        await self.server.serve()

    async def stop(self) -> bool:
        """Stop taking work, answer the requests in flight, commit, write leases and close the shards.

        Return False if the grace period was too short.
        """
        deadline = self._loop.time() + self._config.server.grace_ms / 1000
        self.server.stop_listening()
        self.pulse.end()
        self.vitals.stop()
        self._load.end()
        self.runner.stop()
        clean = await until(lambda: all(shard.queue.idle for shard in self.engine.state.serving), deadline)
        self.lending.throttles.leave()
        await self.server.drain(deadline)
        self.runner.end()
        ready = self.runner.ready.is_set()  # otherwise a hanging database keeps a thread, and nothing can be lost
        closed = await until(lambda: not self.runner.closing, max(deadline if ready else 0.0, self._loop.time() + 0.5))
        await until(lambda: self.runner.marker.idle, self._loop.time() + _SAVE_MARKS_S)
        self.runner.stop_ticking()
        self.peers.close()
        await self.hook_pool.close()
        clean = clean and (closed or not ready)
        counters = self.engine.state.counters.as_dict()
        log.info(
            "host.stopped",
            clean=clean,
            enqueued=counters["enqueued"],
            delivered=counters["delivered"],
            acked=self.engine.state.counters.removed["ack"],
            nacked=counters["nacked"],
            dead=self.engine.state.counters.dead.total(),
            failed_transactions=counters["failed_transactions"],
        )
        log.debug("host.counters", **counters)
        return clean

    # ------------------------------------------------------------------------------------- shards

    def take(self, number: int, epoch_above: int = 0) -> None:
        """Take a shard that this host does not hold, from any owner, with an epoch above `epoch_above`."""
        self.engine.add(number)
        self.runner.take(number, epoch_above)

    def release(self, number: int, handover_ms: int) -> None:
        """Finish the shard's work within `handover_ms`, write its leases and close it."""
        self.runner.release(number, handover_ms)

    def recheck_owner(self, number: int) -> None:
        """Ask the shard's database whether this host still owns the shard."""
        shard = self.engine.state.shards[number]
        shard.owner.want_confirmation()
        self.engine.state.touch(shard)
