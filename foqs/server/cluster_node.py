"""A host of a cluster: take and release shards as ZooKeeper's facts say, and write the host's facts.

`foqs.peers.membership_agent` decides; this module adds the event loop, the clock and the node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from threading import Thread
from uuid import uuid4

import structlog

from foqs.checks import same_account
from foqs.config.load import Config
from foqs.config.schema import ZookeeperSection
from foqs.event_loop import on_daemon_thread, until
from foqs.peers.fact_keeper import FactKeeper, Returned
from foqs.peers.membership_agent import MembershipAgent, ShardLoads
from foqs.server.clock import ClockSurvey
from foqs.server.marks import ClusterMarks
from foqs.server.node import Neighbours, Node
from foqs.server.settings import ClusterSettings
from foqs.shardmgr.continuity import Finding
from foqs.shardmgr.controller import ControllerSettings, Write
from foqs.shardmgr.facts import (
    Facts,
    HostFact,
    OwnerFact,
    Session,
    ShardFact,
    ShardUse,
    Slots,
    other_protocol,
    protocol_error,
)
from foqs.shardmgr.lifecycle import ShardState
from foqs.shardmgr.membership import Held
from foqs.shardmgr.routing import Routing, routing_of
from foqs.store.link import open_link, reachable
from foqs.store.maintenance import read_kept
from foqs.store.passwords import placed
from foqs.store.protocol import ShardStore, StoreError, explained
from foqs.zk.protocol import FactStore, ZkConflict, ZkError, ZkRefused

log = structlog.get_logger("foqs.host")

_ADOPT_S = 10.0
_HELD = "ZooKeeper lost data, and the hosts write it back"
_ELSEWHERE = "ZooKeeper has the records of another cluster"
_READS_AT_ONCE = 16
_CLOSE_S = 2.0
_CLOSE_UNKNOWN_S = 0.2
_REPORTED_MS = 2_000
"""Within this time beyond `breaker.hang_ms`, hosts report that a database does not answer."""
_TRY_URL_S = 5.0
_LINGER_S = 0.5
"""Time in which a host without shards still forwards requests. Clients follow the routing within it; without it, a
request could arrive on a connection that is being closed, and be lost."""


@dataclass(slots=True)
class _Tried:
    """A new URL of a served shard, to which this host connects before it gives up the present one."""

    url: str
    works: bool = False


class LoggedFactWriter:
    """The `FactWriter` of a `MembershipAgent`. It logs each outcome. It does not repeat a failed write: the agent
    writes again if the facts still ask for it."""

    def __init__(self, store: FactStore) -> None:
        self._store = store

    def join(self, host: HostFact) -> None:
        self._store.join(host)

    def own(self, owner: OwnerFact) -> None:
        self._store.own(owner, _logged("announce", owner.shard))

    def disown(self, shard: int, epoch: int) -> None:
        self._store.disown(shard, epoch, _logged("withdraw", shard))

    def assign(self, write: Write) -> None:
        def done(error: ZkError | None) -> None:
            # A conflict is the write of another controller, or an earlier one of this host.
            version = write.version + 1
            if error is None:
                log.info(
                    "assignment.written",
                    version=version, placed=write.placed, moved=write.moved, dropped=write.dropped,
                )  # fmt: skip
            elif not isinstance(error, ZkConflict):
                log.warning("assignment.not_written", version=version, reason=str(error))

        self._store.assign(write.hosts, write.version, done)

    def share_slots(self, wanted: Slots, done: Callable[[], None]) -> None:
        """`wanted` has the version that it replaces. `done` is called with either outcome."""

        def logged(error: ZkError | None) -> None:
            done()
            version, moving = wanted.version + 1, len(wanted.moves)
            if error is None:
                log.info("slots.written", version=version, moving=moving)
            elif not isinstance(error, ZkConflict):
                log.warning("slots.not_written", version=version, moving=moving, reason=str(error))

        self._store.share_slots(wanted, logged)


def _logged(what: str, number: int) -> Callable[[ZkError | None], None]:
    def done(error: ZkError | None) -> None:
        if error is not None:
            log.warning("owner.not_written", what=what, shard=number, reason=str(error))

    return done


class ClusterNode:
    """`make_store(shard number, url)` returns a closed store. All methods run on the event loop.

    `fatal(why)` is called when the host must end: another process has its id, or a host with another protocol version
    is in the cluster. Other hosts on this machine listen on `shared_port` as well.
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
        self._tried: dict[int, _Tried] = {}
        self._routing = Routing()
        self.seat = MembershipAgent(
            self._id, _settings(zookeeper), zookeeper.handover_ms, LoggedFactWriter(facts), self, self._now_ms
        )
        self.keeper = FactKeeper(
            self._id, facts, zookeeper.session_timeout_ms, lambda: uuid4().hex, self._follow, self._hold,
            self._not_written,
        )  # fmt: skip
        neighbours = Neighbours(
            routing=lambda: self._routing,
            handover_ms=zookeeper.handover_ms,
            changed=self._act_soon,
            share_slots=self.seat.share_slots,
            slots_arrived=self.seat.slots_arrived,
            settings=facts,
        )
        self.node = Node(
            config,
            lambda number: make_store(number, self._placed(self._urls[number])),
            neighbours=neighbours,
            marks=ClusterMarks(facts),
            survey=ClockSurvey(
                self._shard_urls,
                self._loop,
                config.store.connect_timeout_ms / 1000,
                config.store.io_timeout_ms / 1000,
            ),
            url_of=lambda number: self._urls[number],
        )
        self.node.vitals.seat = self.seat
        self.node.vitals.held = lambda: self.keeper.hold.value if self.keeper.hold is not None else None
        self.round_trips = facts.round_trips
        assert isinstance(self.node.keeper, ClusterSettings)
        self.settings: ClusterSettings = self.node.keeper
        self.settings.why_not = self._why_held
        self._loads = ShardLoads(
            self.node.forwarder.ask, self._loop_ms, lambda: self._config.breaker.hang_ms + _REPORTED_MS
        )
        self._facts_known = asyncio.Event()
        self._seen = asyncio.Event()  # this host is in the facts
        self._refusals: set[str] = set()  # of write-backs, in the log already
        self._elsewhere = False  # ZooKeeper has the records of another cluster
        self._due = False
        self._timer: asyncio.TimerHandle | None = None
        self._measuring: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------------------------------- life

    async def start(self) -> tuple[str, int]:
        """Wait for ZooKeeper's facts and the end of any other process with this id, then listen and join the cluster.

        Before the facts are there, the host could only refuse requests. The shared port opens once the host is in the
        facts. Return (host, port). Raises OSError if a port is taken, and OtherProtocol if a living host has another
        protocol version.
        """
        host, port = await self.node.bind()
        self._store.start(self._changed, self._session)
        await self._facts_known.wait()
        await self._wait_for_twin()
        if (other := other_protocol(self.seat.facts, self._id)) is not None:
            raise protocol_error(other)
        if not self.seat.facts.hosts.keys() - {self._id}:
            await self._adopt_stored()
        await self.node.server.serve()
        self.seat.join(HostFact(self._id, self.node.address, uuid4().hex))
        self._measure()
        if self._shared_port is not None:
            await self._seen.wait()
            await self.node.share(self._shared_port)
        return host, port

    async def _wait_for_twin(self) -> None:
        """Return when no process at another address has this host's id."""
        logged = ""
        while (twin := self.seat.twin(self.node.address)) is not None:
            if twin.address != logged:
                logged = twin.address
                log.warning("host.waiting", host=self._id, address=twin.address, reason="another process has this id")
            self._facts_known.clear()
            await self._facts_known.wait()

    async def _adopt_stored(self) -> None:
        """Adopt the settings of all shards before the first host joins: each of them may have the newest copy, and the
        shards open one after another. A shard that cannot be read in time is left out."""
        store, shards = self._config.store, self.seat.facts.shards.values()
        connect_s, io_s = store.connect_timeout_ms / 1000, store.io_timeout_ms / 1000
        room, until_s = asyncio.Semaphore(_READS_AT_ONCE), self._loop.time() + _ADOPT_S

        async def adopt(fact: ShardFact) -> str:
            read = partial(read_kept, self._placed(fact.url), fact.id, connect_timeout_s=connect_s, io_timeout_s=io_s)
            try:
                async with asyncio.timeout_at(until_s), room:
                    kept = await on_daemon_thread(read, f"settings-{fact.id}")
                    adopted: asyncio.Future[str] = self._loop.create_future()
                    self.settings.settle(fact.id, kept.settings, partial(_set, adopted))
                    return await adopted
            except StoreError as error:
                return explained(error)
            except TimeoutError:
                return f"no answer in {_ADOPT_S:g} s"

        wanted = [fact for fact in shards if fact.use is not ShardUse.DISABLED]
        reasons = await asyncio.gather(*map(adopt, wanted))
        missed = {fact.id: reason for fact, reason in zip(wanted, reasons, strict=True) if reason}
        if missed:
            log.warning("settings.not_adopted", shards=sorted(missed), reason=missed[min(missed)])

    async def stop(self) -> bool:
        """Move all shards to other hosts while serving, then stop. Return False if the grace period was too short."""
        deadline = self._loop.time() + self._config.server.grace_ms / 1000
        seat = self.seat
        if seat.fact is not None:
            seat.join(replace(seat.fact, leaving=True))
        await until(lambda: not (self.node.engine.state.shards and seat.fresh and seat.others()), deadline)
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
            # Before the first facts, no session exists whose end other hosts would wait for.
            async with asyncio.timeout(_CLOSE_S if self._facts_known.is_set() else _CLOSE_UNKNOWN_S):
                await closed.wait()
        except TimeoutError:
            log.warning("session.not_ended", host=self._id)
        return clean

    def reconfigure(self, config: Config) -> None:
        """Apply `config`, as `Node.reconfigure` does."""
        assert config.zookeeper is not None
        self._config, self._zookeeper = config, config.zookeeper
        self.node.reconfigure(config)
        self.seat.reconfigure(_settings(config.zookeeper))
        self.keeper.session_timeout_ms = config.zookeeper.session_timeout_ms
        if self._measuring is not None:  # it has started
            self._measuring.cancel()
            self._measure()
        self._act_soon()

    # ------------------------------------------------------------------------------------- facts from ZooKeeper

    def _session(self, session: Session) -> None:
        self.keeper.session(session)
        self.settings.reconnected()
        self.seat.session(session)

    def _changed(self, facts: Facts) -> None:
        self.keeper.changed(facts, self._loop_ms())
        if self.keeper.hold not in (None, Finding.FOREIGN):
            self.settings.follow(facts.settings, facts.vanished)
            self.seat.announce(facts, self._loop_ms())
        self._act_soon()

    def _hold(self, finding: Finding, facts: Facts) -> None:
        """Log why the host acts as while ZooKeeper is away: the records are not the known ones."""
        known, found = self.keeper.known, facts.identity
        match finding:
            case Finding.FOREIGN:
                log.error(
                    "zookeeper.other_cluster", root=self._zookeeper.root, known=known.identity.id, found=found.id,
                    mend="correct zookeeper.hosts and zookeeper.root, or put the right data back into ZooKeeper; "
                    "if this cluster is meant, restart the host",
                )  # fmt: skip
                self._elsewhere = True
                if self.seat.fact is not None:
                    self._store.join(replace(self.seat.fact, leaving=True))  # or it would be assigned shards there
            case Finding.LOST:
                log.error("zookeeper.lost", root=self._zookeeper.root, shards_known=len(known.shards))
            case Finding.MERGE:
                log.info("zookeeper.importing", root=self._zookeeper.root)
            case _:
                log.error("zookeeper.restored", root=self._zookeeper.root, shards_known=len(known.shards))
        if finding is not Finding.FOREIGN:
            self.node.runner.marker.save_again()

    def _why_held(self) -> str:
        if self.keeper.settled:
            return ""
        return _ELSEWHERE if self.keeper.hold is Finding.FOREIGN else _HELD

    def _not_written(self, error: object) -> None:
        """A conflict is the write of another host, and a lost connection is in the log already."""
        if isinstance(error, ZkRefused) and str(error) not in self._refusals:
            self._refusals.add(str(error))
            log.error("zookeeper.refused", root=self._zookeeper.root, reason=str(error))

    def _follow(self, facts: Facts, returned: Returned | None) -> None:
        if returned is not None:
            made = returned.written
            log.warning(
                "zookeeper.written_back", root=self._zookeeper.root, shards=made.get("shards", 0),
                slots=made.get("slots", 0), assignment=made.get("assignment", 0), drained=made.get("drained", 0),
            )  # fmt: skip
            if returned.disabled:
                log.warning(
                    "zookeeper.shards_disabled", shards=returned.disabled,
                    reason="they were removed, and the copy that ZooKeeper was put back to has them",
                    mend="`foqs shards remove`, or `foqs shards enable` to serve them again",
                )  # fmt: skip
            if returned.left_out:
                log.warning(
                    "zookeeper.shards_gone", shards=returned.left_out,
                    reason="they were removed while this host had no session",
                )  # fmt: skip
        if self._elsewhere and self.seat.fact is not None:
            self._elsewhere = False
            self._store.join(self.seat.fact)
        self.node.vitals.follow(self.seat.facts, facts)
        fatal = self.seat.changed(facts)
        self.settings.follow(facts.settings, facts.vanished)
        self._facts_known.set()
        if self.seat.seen:
            self._seen.set()
        routing = routing_of(facts)
        if routing != self._routing:
            self._routing = routing
            self.node.service.routing_changed()
        if fatal is not None:
            self._fatal(fatal)
        self._act_soon()

    # ------------------------------------------------------------------------------------- act on the facts

    def _act_soon(self) -> None:
        if not self._due:
            self._due = True
            self._loop.call_soon(self._act)

    def _act(self) -> None:
        self._due = False
        if self.seat.fresh:
            self._adopt_urls()
        now_ms = self._loop_ms()
        times = [self.keeper.act(now_ms), self.seat.act(now_ms, self._loads.measured)]
        self._set_timer(min((at for at in times if at is not None), default=None), now_ms)

    def _adopt_urls(self) -> None:
        """Follow changed URLs of served shards, each after a try from this host: a mistake must close no shard.

        A new password, or other files for TLS, are for the next connection of the shard, which stays open. Any other
        URL is shown to the membership (`held`) once it works, and then the shard is released and opened there."""
        shards = self.node.engine.state.shards
        self._tried = {number: tried for number, tried in self._tried.items() if number in shards}
        for number, shard in shards.items():
            fact, url = self.seat.facts.shards.get(number), self._urls[number]
            if fact is None or fact.url == url or shard.owner.state is not ShardState.SERVING:
                self._tried.pop(number, None)
                continue
            if same_account(fact.url, url):
                self._use_url(fact)
            if number not in self._tried or self._tried[number].url != fact.url:
                self._try_url(fact)

    def _use_url(self, fact: ShardFact) -> None:
        self._urls[fact.id] = fact.url
        try:
            self.node.runner.use_url(fact.id, self._placed(fact.url))
        except StoreError as error:
            log.error("shard.url_refused", shard=fact.id, reason=explained(error))
        else:
            log.info("shard.url_changed", shard=fact.id)

    def _try_url(self, fact: ShardFact) -> None:
        """Connect with the URL on a daemon thread, and log why that fails: operators see it before it matters."""
        store, tried = self._config.store, _Tried(fact.url)
        self._tried[fact.id] = tried
        connect_s, io_s = store.connect_timeout_ms / 1000, store.io_timeout_ms / 1000

        def finish() -> None:
            tried.works = True
            self._act_soon()

        def again() -> None:
            if self._tried.get(fact.id) is tried:
                del self._tried[fact.id]
                self._act_soon()

        def run() -> None:
            try:
                with open_link(self._placed(fact.url), connect_timeout_s=connect_s, io_timeout_s=io_s, look_only=True):
                    then = finish
            except StoreError as error:
                log.error("shard.url_fails", shard=fact.id, reason=explained(error))
                then = partial(self._loop.call_later, _TRY_URL_S, again)  # type: ignore[assignment]
            with suppress(RuntimeError):  # the loop is closed: the host has ended
                self._loop.call_soon_threadsafe(then)

        Thread(target=run, name=f"url-{fact.id}", daemon=True).start()

    def _measure(self) -> None:
        """The controller needs every shard's load to balance them."""
        self._measuring = self._loop.call_later(self._zookeeper.balance_every_ms / 2_000, self._measure)
        facts = self.seat.facts
        if self.seat.fresh and facts.controller == self._id:
            self._loads.ask(host.address for host in facts.hosts.values())
        else:
            self._loads.forget()

    def _shard_urls(self) -> list[str]:
        """Return the URLs of all shards that hosts of the cluster may serve."""
        facts = self.seat.facts.shards.values()
        return [self._placed(fact.url) for fact in facts if fact.use is not ShardUse.DISABLED]

    def _placed(self, url: str) -> str:
        return placed(url, self._config.store.secrets_dir)

    def _now_ms(self) -> int:
        return self.node.now_ms()

    def _loop_ms(self) -> int:
        return int(self._loop.time() * 1000)

    # ------------------------------------------------------------------------------------- the shards of the node

    def held(self) -> Mapping[int, Held]:
        return {
            number: Held(self._shown_url(number), shard.owner.state, shard.owner.epoch)
            for number, shard in self.node.engine.state.shards.items()
        }

    def _shown_url(self, number: int) -> str:
        """Return the URL of a shard; the new URL while it is tried or fails."""
        tried = self._tried.get(number)
        return self._urls[number] if tried is None or tried.works else tried.url

    def take(self, fact: ShardFact, epoch_above: int) -> None:
        self._urls[fact.id] = fact.url
        self.node.take(fact.id, epoch_above)

    def release(self, number: int) -> None:
        self.node.release(number, self._zookeeper.handover_ms)

    def recheck_owner(self, number: int) -> None:
        self.node.recheck_owner(number)

    def seal(self, sealed: frozenset[int]) -> None:
        for number, shard in self.node.engine.state.shards.items():
            shard.owner.take_new(number not in sealed)

    def down(self) -> Collection[int]:
        hosts, node = self.seat.facts.assignment.hosts, self.node
        node.runner.driver.keep_unreachable({number for number, host in hosts.items() if host == self._id})
        return node.unreachable.union(shard.number for shard in node.engine.state.shards.values() if shard.owner.lost)

    def read_only(self) -> Collection[int]:
        return self.node.read_only

    def silent_ms(self) -> Mapping[int, int]:
        return self.node.pulse.silent_ms()

    def probe(self, fact: ShardFact, done: Callable[[bool], None]) -> None:
        """Connect in a daemon thread, so that a server that does not answer cannot keep the process from ending."""

        store = self._config.store
        connect_s, io_s = store.connect_timeout_ms / 1000, store.io_timeout_ms / 1000

        def finish(ok: bool) -> None:
            done(ok)
            self._act_soon()

        def run() -> None:
            ok = reachable(self._placed(fact.url), connect_timeout_s=connect_s, io_timeout_s=io_s)
            with suppress(RuntimeError):  # the loop is closed: the host has ended
                self._loop.call_soon_threadsafe(finish, ok)

        Thread(target=run, name=f"probe-{fact.id}", daemon=True).start()

    def _set_timer(self, at_ms: int | None, now_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if at_ms is not None:
            self._timer = self._loop.call_later(max(1, at_ms - now_ms) / 1000, self._act_soon)


def _set(future: asyncio.Future[str], reason: str) -> None:
    if not future.done():
        future.set_result(reason)


def _settings(zookeeper: ZookeeperSection) -> ControllerSettings:
    return ControllerSettings(
        session_timeout_ms=zookeeper.session_timeout_ms,
        settle_ms=zookeeper.settle_ms,
        balance_every_ms=zookeeper.balance_every_ms,
        max_moves=zookeeper.max_moves,
    )
